-- The secrets of an endpoint by their dates, newest first; never what they are.
--   $1 text  endpoint
-- Returns: created_at text, expires_at text (null: without end), live boolean (signs now); times as RFC 3339.
select coalesce(to_char(s.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.created_at::text) as created_at,
       coalesce(to_char(s.expires_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.expires_at::text) as expires_at,
       (s.expires_at is null or s.expires_at > now()) as live
  from postrider.endpoint_secrets s
 where s.endpoint = $1::text
 order by s.id desc;
