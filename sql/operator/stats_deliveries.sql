-- Deliveries of the last hours by status, counted among the newest ones only: history has no end, this statement has.
--   $1 text              endpoint; null: all
--   $2 double precision  the window in hours
--   $3 bigint            how many of the newest deliveries it looks at
-- Returns: status text, exhausted_reason text, count bigint, cut boolean (the same in each row: the window holds more than
--   was looked at). When nothing matches, one row without a status.
with newest as materialized (
  select d.status, d.exhausted_reason, d.endpoint, d.created_at
    from postrider.deliveries d order by d.id desc limit $3::bigint
),
reach as (
  select count(*) >= $3::bigint
           and min(n.created_at) >= now() - make_interval(secs => $2::double precision * 3600) as cut
    from newest n
)
select n.status, n.exhausted_reason, count(n.status) as count, r.cut
  from reach r
  left join newest n
    on n.created_at >= now() - make_interval(secs => $2::double precision * 3600)
   and ($1::text is null or n.endpoint = $1::text)
 group by n.status, n.exhausted_reason, r.cut
 order by n.status, n.exhausted_reason;
