-- What the tries of the last hours did, per endpoint and over all of them, from the rollup: the tries themselves may be gone.
--   $1 text     endpoint; null: all
--   $2 integer  the window: so many hours (UTC), the present one included
--   $3 integer  hours in a slot of the series; the first slot begins with the window
-- Returns a row per endpoint that was tried, and first one with endpoint null for all of them: endpoint text, tries bigint,
--   delivered_tries bigint, first_tries bigint, first_try_delivered bigint, finished bigint, finished_delivered bigint,
--   success_percent double precision, first_try_percent double precision, eventual_percent double precision (null: of nothing),
--   p50_ms double precision, p95_ms double precision, p99_ms double precision,
--   slots integer[] (from 0, rising; those without tries are left out), slot_tries bigint[], slot_failures bigint[].
with hour as materialized (
  select h.endpoint, h.tries, h.delivered, h.first_tries, h.first_delivered, h.ended, h.ended_delivered, h.buckets, h.counts,
         (extract(epoch from h.hour - b.first) / 3600)::integer / $3::integer as slot
    from (select date_bin('1 h', now(), '2000-01-01 00:00:00+00') - make_interval(hours => $2::integer - 1) as first) b
    join postrider.report_hours h on h.hour >= date_bin('1 h', now(), '2000-01-01 00:00:00+00') - make_interval(hours => $2::integer - 1)
   where $1::text is null or h.endpoint = $1::text
),
bucket_of_each as materialized (
  select h.endpoint, d.bucket, sum(d.n) as n from hour h cross join unnest(h.buckets, h.counts) as d (bucket, n) group by h.endpoint, d.bucket
),
bucket as (
  select o.endpoint, o.bucket, sum(o.n)::bigint as n
    from bucket_of_each o group by grouping sets ((o.endpoint, o.bucket), (o.bucket))
),
histogram as (
  select b.endpoint, array_agg(b.bucket order by b.bucket) as buckets, array_agg(b.n order by b.bucket) as counts
    from bucket b group by b.endpoint
),
slot as (
  select h.endpoint, h.slot, sum(h.tries)::bigint as tries, sum(h.tries - h.delivered)::bigint as failures
    from hour h group by grouping sets ((h.endpoint, h.slot), (h.slot))
),
series as (
  select s.endpoint, array_agg(s.slot order by s.slot) as slots, array_agg(s.tries order by s.slot) as slot_tries,
         array_agg(s.failures order by s.slot) as slot_failures
    from slot s group by s.endpoint
),
total as (
  select h.endpoint, sum(h.tries)::bigint as tries, sum(h.delivered)::bigint as delivered_tries,
         sum(h.first_tries)::bigint as first_tries, sum(h.first_delivered)::bigint as first_try_delivered,
         sum(h.ended)::bigint as finished, sum(h.ended_delivered)::bigint as finished_delivered
    from hour h group by grouping sets ((h.endpoint), ()) having count(*) > 0
)
select t.endpoint, t.tries, t.delivered_tries, t.first_tries, t.first_try_delivered, t.finished, t.finished_delivered,
       round(100.0 * t.delivered_tries / t.tries, 2)::double precision as success_percent,
       round(100.0 * t.first_try_delivered / nullif(t.first_tries, 0), 2)::double precision as first_try_percent,
       round(100.0 * t.finished_delivered / nullif(t.finished, 0), 2)::double precision as eventual_percent,
       postrider.percentile_ms(g.buckets, g.counts, 0.5) as p50_ms,
       postrider.percentile_ms(g.buckets, g.counts, 0.95) as p95_ms,
       postrider.percentile_ms(g.buckets, g.counts, 0.99) as p99_ms,
       s.slots, s.slot_tries, s.slot_failures
  from total t
  -- No endpoint's name is empty. A join by "is not distinct from" would compare each with each.
  join series s on coalesce(s.endpoint, '') = coalesce(t.endpoint, '')
  left join histogram g on coalesce(g.endpoint, '') = coalesce(t.endpoint, '')
 order by t.endpoint nulls first;
