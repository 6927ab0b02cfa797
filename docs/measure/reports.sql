-- How long success_rate takes to show 30 days of 20 million tries of 100 endpoints, as they are when workers have counted them, with what ten busy
-- seconds leave to be added up. No attempt is looked at, so none is made here. In a database with the schema, as its owner; it leaves nothing
-- behind: psql -d DATABASE -f docs/measure/reports.sql
\set QUIET on
\set ON_ERROR_STOP on
\pset pager off
begin;
insert into postrider.reports
       (endpoint, hour, tries, delivered, first_tries, first_delivered, ended, ended_delivered, buckets, counts, p50_ms, p95_ms, p99_ms)
select 'reports-cost-' || e, date_bin('1 h', now(), '2000-01-01 00:00:00+00') - h * interval '1 h', 278, 270, 275, 268, 276, 270,
       '{15,16,17,18,19,20,21,22,23,24,25,26}', '{1,4,9,30,70,64,40,30,20,6,3,1}', 50, 100, 150
  from generate_series(1, 100) e cross join generate_series(0, 719) h;
insert into postrider.report_changes (endpoint, hour, change, codes)
select 'reports-cost-' || g % 100 + 1, date_bin('1 h', now(), '2000-01-01 00:00:00+00'), 1, array_fill(167::smallint, array[25])
  from generate_series(1, 4000) g;
create temporary table taken (what text, ms numeric);
do $$
declare
  began timestamptz;
begin
  for n in 1 .. 9 loop
    began := clock_timestamp();
    perform * from postrider.success_rate where hour > now() - interval '30 days';
    insert into taken values ('every endpoint and hour', extract(epoch from clock_timestamp() - began) * 1000);
    began := clock_timestamp();
    perform * from postrider.success_rate where endpoint = 'reports-cost-7' and hour > now() - interval '30 days';
    insert into taken values ('one endpoint', extract(epoch from clock_timestamp() - began) * 1000);
  end loop;
end $$;
select (select sum(tries) from postrider.success_rate where endpoint like 'reports-cost-%') as tries, what,
       round(percentile_cont(0.5) within group (order by ms)::numeric) as median_ms, round(max(ms)) as most_ms
  from taken group by what order by what;
rollback;
