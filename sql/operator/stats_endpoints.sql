-- How many tries of the last hours delivered, per endpoint. Counts as the view postrider.success_rate does, but over the
-- table: the bound on started_at lets PostgreSQL skip the days that do not matter, which the view cannot pass on.
--   $1 text              endpoint; null: all
--   $2 double precision  the window in hours
-- Returns: endpoint text, tries bigint, delivered_tries bigint, first_tries bigint, first_try_delivered bigint,
--   eventually_delivered bigint, success_percent double precision, p50_ms double precision, p95_ms double precision;
--   the latter two over the window.
select a.endpoint,
       count(*) as tries,
       count(*) filter (where a.outcome = 'delivered') as delivered_tries,
       count(*) filter (where a.attempt_no = 1) as first_tries,
       count(*) filter (where a.attempt_no = 1 and a.outcome = 'delivered') as first_try_delivered,
       count(*) filter (where a.attempt_no = 1 and d.status = 'delivered') as eventually_delivered,
       round(100.0 * count(*) filter (where a.outcome = 'delivered') / count(*), 2)::double precision as success_percent,
       percentile_cont(0.5) within group (order by a.duration_ms) as p50_ms,
       percentile_cont(0.95) within group (order by a.duration_ms) as p95_ms
  from postrider.attempts a
  left join postrider.deliveries d on d.id = a.delivery_id and a.attempt_no = 1
 where a.started_at >= now() - make_interval(secs => $2::double precision * 3600)
   and ($1::text is null or a.endpoint = $1::text)
 group by a.endpoint
 order by a.endpoint;
