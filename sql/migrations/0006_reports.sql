-- Reports: what tries did, per endpoint and hour, counted as they are recorded.
--
-- Whoever writes attempts, a trigger notes the change in report_changes: one small row per statement, endpoint and hour, which no
-- index and no other writer is waited for. From time to time fold_reports adds them up into reports. The view success_rate reads both,
-- and so is exact at every moment: in the writer's own transaction, too, and however long nobody has folded.
--
-- A counter that is updated in place instead would be one row that all workers wait for, and, while a long transaction keeps
-- its old versions alive, one whose every update looks through all of them.

-- ------------------------------------------------------------------ histograms

create function postrider.duration_bounds() returns integer[]
language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
  select '{0,1,2,3,4,5,6,7,8,10,12,14,16,20,23,27,32,39,46,54,64,77,91,108,128,153,182,216,256,305,363,431,512,609,725,862,1024,1218,1449,
    1723,2048,2436,2897,3445,4096,4871,5793,6889,8192,9742,11586,13778,16384,19484,23171,27555,32768,38968,46341,55109,65536,77936,92682,
    110218,131072,155872,185364,220436,262144,311744,370728,440872,524288,623488,741456,881744,1048576,1246975,1482911,1763488,2097152,
    2493949,2965821,3526976,4194304,4987897,5931642,7053951,8388608,9975793,11863284,14107901,16777216,19951585,23726567,28215802,33554432,
    39903170,47453133,56431604,67108864,79806339,94906266,112863207,134217728,159612678,189812532,225726413,268435456,319225355,379625063,
    451452826,536870912,638450709,759250125,902905651,1073741824,1276901417,1518500250,1805811302}'::integer[]
$$;
comment on function postrider.duration_bounds() is
  'Where each bucket of a histogram of durations begins, in milliseconds: 0, then the whole numbers from 2^(k/4) on. The highest value of a bucket is less than 1.19 times its lowest.';

create function postrider.percentile_ms(buckets smallint[], counts bigint[], fraction double precision) returns double precision
language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
declare
  bounds constant integer[] := postrider.duration_bounds();
  -- The value that percentile_disc would return is the one of this rank.
  rank bigint := greatest(1, ceil(fraction * (select sum(n) from unnest(counts) as n)));
  lowest double precision;
  highest double precision;
begin
  for i in 1 .. cardinality(buckets) loop
    if rank <= counts[i] then
      lowest := bounds[buckets[i]];
      highest := coalesce(bounds[buckets[i] + 1] - 1, 2147483647);
      return lowest + (highest - lowest) * (rank - 0.5) / counts[i];
    end if;
    rank := rank - counts[i];
  end loop;
  return null;
end
$$;
comment on function postrider.percentile_ms(smallint[], bigint[], double precision) is
  'A percentile of a histogram, in milliseconds: buckets in rising order, how many are in each, and a fraction such as 0.95. It lies in the bucket of the exact one (percentile_disc), so it is less than 19 % off, and exact below 8 ms. NULL: nothing was counted.';

-- ------------------------------------------------------------------ tables

create table postrider.report_changes (
  hour     timestamptz not null,
  change   smallint not null,
  endpoint text collate "C" not null,
  codes    smallint[] not null,
  constraint report_changes_add_or_take_away check (change in (1, -1))
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_threshold = -1
);
comment on table postrider.report_changes is 'Tries that postrider.fold_reports has not added to reports yet. A trigger writes it; read postrider.success_rate.';
comment on column postrider.report_changes.hour is 'When the hour (UTC) began in which the tries began.';
comment on column postrider.report_changes.change is '1: they were recorded. -1: they were recorded otherwise before.';
comment on column postrider.report_changes.endpoint is 'Where they went.';
comment on column postrider.report_changes.codes is
  'One for each try: 8 times the bucket of its duration (its place in duration_bounds; 0: it has none), + 1: delivered, + 2: the first of its delivery, + 4: no other was to follow.';

create table postrider.reports (
  hour            timestamptz not null,
  tries           bigint not null,
  delivered       bigint not null,
  first_tries     bigint not null,
  first_delivered bigint not null,
  ended           bigint not null,
  ended_delivered bigint not null,
  p50_ms          double precision,
  p95_ms          double precision,
  p99_ms          double precision,
  endpoint        text collate "C" not null,
  buckets         smallint[] not null,
  counts          integer[] not null,
  constraint reports_pkey primary key (endpoint, hour),
  constraint reports_count_each_bucket check (cardinality(buckets) = cardinality(counts))
) with (fillfactor = 60);
create index reports_by_hour on postrider.reports (hour);
comment on table postrider.reports is
  'Tries per endpoint and hour, but for those in report_changes. postrider.fold_reports writes it; read postrider.success_rate. It outlives the attempts: delete hours that nobody asks for any more.';
comment on column postrider.reports.hour is 'When the hour (UTC) began in which the tries began.';
comment on column postrider.reports.tries is 'Physical tries.';
comment on column postrider.reports.delivered is 'Of them, delivered.';
comment on column postrider.reports.first_tries is 'Of them, the first of their delivery.';
comment on column postrider.reports.first_delivered is 'Of the first ones, delivered.';
comment on column postrider.reports.ended is 'Of them, those after which no other was to follow.';
comment on column postrider.reports.ended_delivered is 'Of the last ones, delivered.';
comment on column postrider.reports.p50_ms is 'percentile_ms(buckets, counts, 0.5)';
comment on column postrider.reports.p95_ms is 'percentile_ms(buckets, counts, 0.95)';
comment on column postrider.reports.p99_ms is 'percentile_ms(buckets, counts, 0.99)';
comment on column postrider.reports.endpoint is 'Where they went; the endpoint may be gone.';
comment on column postrider.reports.buckets is 'Places in duration_bounds, rising: where durations fell. Tries without a duration are in none.';
comment on column postrider.reports.counts is 'How many fell into each of them. To merge histograms, add up the counts of each bucket.';

-- ------------------------------------------------------------------ what counts

create function postrider.count_attempts() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  bounds constant integer[] := postrider.duration_bounds();
begin
  if tg_op = 'INSERT' then
    insert into postrider.report_changes (endpoint, hour, change, codes)
    select t.endpoint, date_bin('1 h', t.started_at, '2000-01-01 00:00:00+00'), 1,
           array_agg((coalesce(width_bucket(t.duration_ms, bounds), 0) * 8
                      + case t.outcome when 'delivered' then 1 else 0 end
                      + case t.attempt_no when 1 then 2 else 0 end
                      + case when t.next_retry is null then 4 else 0 end)::smallint)
      from after_it t
     group by 1, 2;
  elsif exists (select from after_it) then
    -- Every batch of results comes by here, nearly always without a row. What an update leaves as it counts, bodies that are purged
    -- for example, is no change.
    with version (change, endpoint, started_at, duration_ms, outcome, attempt_no, next_retry) as (
      select 1, a.endpoint, a.started_at, a.duration_ms, a.outcome, a.attempt_no, a.next_retry from after_it a
      union all
      select -1, b.endpoint, b.started_at, b.duration_ms, b.outcome, b.attempt_no, b.next_retry from before_it b
    ),
    change (endpoint, hour, code, n) as (
      select v.endpoint, date_bin('1 h', v.started_at, '2000-01-01 00:00:00+00'),
             (coalesce(width_bucket(v.duration_ms, bounds), 0) * 8
              + case v.outcome when 'delivered' then 1 else 0 end
              + case v.attempt_no when 1 then 2 else 0 end
              + case when v.next_retry is null then 4 else 0 end)::smallint,
             sum(v.change)::integer
        from version v
       group by 1, 2, 3
      having sum(v.change) <> 0
    )
    insert into postrider.report_changes (endpoint, hour, change, codes)
    select c.endpoint, c.hour, sign(c.n), array_agg(c.code)
      from change c cross join generate_series(1, abs(c.n))
     group by c.endpoint, c.hour, sign(c.n);
  end if;
  return null;
end
$$;
comment on function postrider.count_attempts() is
  'Trigger: notes in report_changes what a statement wrote into attempts. What is deleted or dropped stays counted, since it did happen.';
create trigger attempts_count_new after insert on postrider.attempts
  referencing new table as after_it for each statement execute function postrider.count_attempts();
create trigger attempts_count_changed after update on postrider.attempts
  referencing old table as before_it new table as after_it for each statement execute function postrider.count_attempts();

create function postrider.fold_reports(max_rows integer default 10000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  folded integer;
begin
  -- One at a time, so that nobody waits for a row of reports and nobody's sum is lost.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.fold_reports', 0)) then
    return 0;
  end if;
  with change as (
    delete from postrider.report_changes c
     where c.ctid = any (array(select o.ctid from postrider.report_changes o limit fold_reports.max_rows))
    returning c.endpoint, c.hour, c.change, c.codes
  ),
  touched as materialized (
    select distinct c.endpoint, c.hour from change c
  ),
  counted as (
    select c.endpoint, c.hour, code, sum(c.change) as n from change c cross join unnest(c.codes) as code group by c.endpoint, c.hour, code
  ),
  item as (
    select c.endpoint, c.hour, c.code >> 3 as bucket, c.n, c.n as tries, c.n * (c.code & 1) as delivered,
           c.n * (c.code >> 1 & 1) as first_tries, c.n * (c.code >> 1 & c.code & 1) as first_delivered,
           c.n * (c.code >> 2 & 1) as ended, c.n * (c.code >> 2 & c.code & 1) as ended_delivered
      from counted c
    union all
    select r.endpoint, r.hour, 0, 0, r.tries, r.delivered, r.first_tries, r.first_delivered, r.ended, r.ended_delivered
      from postrider.reports r join touched t on t.endpoint = r.endpoint and t.hour = r.hour
    union all
    select r.endpoint, r.hour, h.bucket, h.n, 0, 0, 0, 0, 0, 0
      from postrider.reports r join touched t on t.endpoint = r.endpoint and t.hour = r.hour
     cross join unnest(r.buckets, r.counts) as h (bucket, n)
  ),
  bucket as (
    select i.endpoint, i.hour, i.bucket::smallint as bucket, sum(i.n)::integer as n, sum(i.tries) as tries,
           sum(i.delivered) as delivered, sum(i.first_tries) as first_tries, sum(i.first_delivered) as first_delivered,
           sum(i.ended) as ended, sum(i.ended_delivered) as ended_delivered
      from item i group by i.endpoint, i.hour, i.bucket
  ),
  total as (
    select b.endpoint, b.hour, sum(b.tries) as tries, sum(b.delivered) as delivered, sum(b.first_tries) as first_tries,
           sum(b.first_delivered) as first_delivered, sum(b.ended) as ended, sum(b.ended_delivered) as ended_delivered,
           coalesce(array_agg(b.bucket order by b.bucket) filter (where b.bucket > 0 and b.n <> 0), '{}') as buckets,
           coalesce(array_agg(b.n order by b.bucket) filter (where b.bucket > 0 and b.n <> 0), '{}') as counts
      from bucket b group by b.endpoint, b.hour
  ),
  written as (
    insert into postrider.reports as r
           (endpoint, hour, tries, delivered, first_tries, first_delivered, ended, ended_delivered, buckets, counts, p50_ms, p95_ms, p99_ms)
    select t.endpoint, t.hour, t.tries, t.delivered, t.first_tries, t.first_delivered, t.ended, t.ended_delivered, t.buckets, t.counts,
           postrider.percentile_ms(t.buckets, t.counts, 0.5), postrider.percentile_ms(t.buckets, t.counts, 0.95),
           postrider.percentile_ms(t.buckets, t.counts, 0.99)
      from total t
        on conflict (endpoint, hour) do update
       set tries = excluded.tries, delivered = excluded.delivered, first_tries = excluded.first_tries,
           first_delivered = excluded.first_delivered, ended = excluded.ended, ended_delivered = excluded.ended_delivered,
           buckets = excluded.buckets, counts = excluded.counts,
           p50_ms = excluded.p50_ms, p95_ms = excluded.p95_ms, p99_ms = excluded.p99_ms
  )
  select count(*) into folded from change;
  return folded;
end
$$;
comment on function postrider.fold_reports(integer) is
  'Adds at most max_rows rows of report_changes up into reports; returns how many. 0: nothing is left, or somebody else is at it. No number that success_rate shows depends on it, only how fast it shows them.';

-- ------------------------------------------------------------------ what people read

create view postrider.report_sums as
select b.endpoint, b.hour, sum(b.tries)::bigint as tries, sum(b.delivered)::bigint as delivered,
       sum(b.first_tries)::bigint as first_tries, sum(b.first_delivered)::bigint as first_delivered,
       sum(b.ended)::bigint as ended, sum(b.ended_delivered)::bigint as ended_delivered,
       coalesce(array_agg(b.bucket order by b.bucket) filter (where b.bucket > 0 and b.n <> 0), '{}') as buckets,
       coalesce(array_agg(b.n order by b.bucket) filter (where b.bucket > 0 and b.n <> 0), '{}') as counts
  from (
    select i.endpoint, i.hour, i.bucket::smallint as bucket, sum(i.n)::integer as n, sum(i.tries) as tries,
           sum(i.delivered) as delivered, sum(i.first_tries) as first_tries, sum(i.first_delivered) as first_delivered,
           sum(i.ended) as ended, sum(i.ended_delivered) as ended_delivered
      from (
        select c.endpoint, c.hour, c.code >> 3 as bucket, c.n, c.n as tries, c.n * (c.code & 1) as delivered,
               c.n * (c.code >> 1 & 1) as first_tries, c.n * (c.code >> 1 & c.code & 1) as first_delivered,
               c.n * (c.code >> 2 & 1) as ended, c.n * (c.code >> 2 & c.code & 1) as ended_delivered
          from (select d.endpoint, d.hour, code, sum(d.change) as n
                  from postrider.report_changes d cross join unnest(d.codes) as code
                 group by d.endpoint, d.hour, code) c
        union all
        select r.endpoint, r.hour, 0, 0, r.tries, r.delivered, r.first_tries, r.first_delivered, r.ended, r.ended_delivered
          from postrider.reports r
         where exists (select from postrider.report_changes c where c.endpoint = r.endpoint and c.hour = r.hour)
        union all
        select r.endpoint, r.hour, h.bucket, h.n, 0, 0, 0, 0, 0, 0
          from postrider.reports r cross join unnest(r.buckets, r.counts) as h (bucket, n)
         where exists (select from postrider.report_changes c where c.endpoint = r.endpoint and c.hour = r.hour)
      ) i
     group by i.endpoint, i.hour, i.bucket
  ) b
 group by b.endpoint, b.hour;
comment on view postrider.report_sums is
  'Reports with their changes added, for those endpoints and hours that have any. Read postrider.success_rate.';

create view postrider.report_hours as
select r.endpoint, r.hour, r.tries, r.delivered, r.first_tries, r.first_delivered, r.ended, r.ended_delivered,
       r.buckets, r.counts, r.p50_ms, r.p95_ms, r.p99_ms
  from postrider.reports r
 where r.tries > 0
   and not exists (select from postrider.report_changes c where c.endpoint = r.endpoint and c.hour = r.hour)
union all
select s.endpoint, s.hour, s.tries, s.delivered, s.first_tries, s.first_delivered, s.ended, s.ended_delivered,
       s.buckets, s.counts, postrider.percentile_ms(s.buckets, s.counts, 0.5), postrider.percentile_ms(s.buckets, s.counts, 0.95),
       postrider.percentile_ms(s.buckets, s.counts, 0.99)
  from postrider.report_sums s
 where s.tries > 0;
comment on view postrider.report_hours is
  'What success_rate shows, as counts and with the histograms, so that hours can be added up: percentile_ms over the summed counts of each bucket.';

drop view postrider.success_rate;
create view postrider.success_rate as
select h.endpoint, h.hour, h.tries, h.delivered as delivered_tries, h.first_tries, h.first_delivered as first_try_delivered,
       h.ended as finished, h.ended_delivered as finished_delivered,
       round(100.0 * h.delivered / h.tries, 2) as success_percent,
       round(100.0 * h.first_delivered / nullif(h.first_tries, 0), 2) as first_try_percent,
       round(100.0 * h.ended_delivered / nullif(h.ended, 0), 2) as eventual_percent,
       h.p50_ms, h.p95_ms, h.p99_ms
  from postrider.report_hours h;
comment on view postrider.success_rate is
  'Per endpoint and hour (UTC) in which tries began: tries and how many delivered, first tries and how many of them delivered, tries that were a delivery''s last (finished) and how many of them delivered, and how long tries took: percentiles less than 19 % off. Outlives the attempts.';

-- ------------------------------------------------------------------ what is there already

insert into postrider.report_changes (endpoint, hour, change, codes)
select a.endpoint, date_bin('1 h', a.started_at, '2000-01-01 00:00:00+00'), 1,
       array_agg((coalesce(width_bucket(a.duration_ms, b.bounds), 0) * 8
                  + case a.outcome when 'delivered' then 1 else 0 end
                  + case a.attempt_no when 1 then 2 else 0 end
                  + case when a.next_retry is null then 4 else 0 end)::smallint)
  from postrider.attempts a cross join (select postrider.duration_bounds()) b (bounds)
 group by 1, 2;
do $$
begin
  while postrider.fold_reports() > 0 loop
  end loop;
end
$$;
