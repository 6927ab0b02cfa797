-- Every try of a delivery, in the order they were made.
--   $1 bigint  delivery id
-- Returns: attempt_no integer, claim_no bigint, started_at text, duration_ms integer, outcome text, status_code integer,
--   error_kind text, error text, worker text, remote_addr text, request_headers text and response_headers text (JSON),
--   response_body bytea, response_truncated boolean, reply_purged_at text, next_retry text; times as RFC 3339.
select a.attempt_no, a.claim_no,
       coalesce(to_char(a.started_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), a.started_at::text) as started_at,
       a.duration_ms, a.outcome, a.status_code, a.error_kind, a.error, a.worker, a.remote_addr,
       a.request_headers::text as request_headers, a.response_headers::text as response_headers,
       a.response_body, a.response_truncated,
       coalesce(to_char(a.reply_purged_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), a.reply_purged_at::text) as reply_purged_at,
       coalesce(to_char(a.next_retry at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), a.next_retry::text) as next_retry
  from postrider.attempts a
 where a.delivery_id = $1::bigint
 order by a.attempt_no, a.started_at, a.claim_no;
