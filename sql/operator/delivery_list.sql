-- Deliveries, newest first, a page at a time.
--   $1 text     status; null: any
--   $2 text     endpoint; null: any
--   $3 text     exhausted_reason; null: any
--   $4 text     event type; null: any
--   $5 bigint   only ids below this one; null: from the newest
--   $6 bigint   rows at most
-- Returns: id bigint, endpoint text, event_id text, event_type text, state text, status text, exhausted_reason text,
--   held_by bigint, attempt_count integer, next_retry text, last_status_code integer, last_error text, created_at text,
--   finished_at text; times as RFC 3339.
select s.id, s.endpoint, s.event_id, s.event_type, s.state, s.status, s.exhausted_reason, s.held_by, s.attempt_count,
       coalesce(to_char(s.next_retry at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.next_retry::text) as next_retry,
       s.last_status_code, s.last_error,
       coalesce(to_char(s.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.created_at::text) as created_at,
       coalesce(to_char(s.finished_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.finished_at::text) as finished_at
  from postrider.delivery_state s
 where ($1::text is null or s.status = $1::text)
   and ($2::text is null or s.endpoint = $2::text)
   and ($3::text is null or s.exhausted_reason = $3::text)
   and ($4::text is null or s.event_type = $4::text)
   and ($5::bigint is null or s.id < $5::bigint)
 order by s.id desc
 limit $6::bigint;
