-- What a publish costs its caller among 10,000 endpoints of which 3 ask for the event. In a database with the schema, as its owner; it leaves
-- nothing behind: psql -d DATABASE -f docs/measure/publish.sql
\set QUIET on
\set ON_ERROR_STOP on
\pset pager off
begin;
insert into postrider.endpoints (name, url, event_types, filter)
select 'publish-cost-' || n, 'http://127.0.0.1:9/', array['publish_cost' || n || '.*', 'a.b' || n], '$.n > 1'
  from generate_series(1, 9997) n;
insert into postrider.endpoints (name, url, event_types, filter) values
  ('publish-cost-exact', 'http://127.0.0.1:9/', '{publish_cost.b.c}', null),
  ('publish-cost-prefix', 'http://127.0.0.1:9/', '{publish_cost.b.*}', '$.n > 1'),
  ('publish-cost-wide', 'http://127.0.0.1:9/', '{publish_cost.*}', '$.n < 1000');
create temporary table taken (n integer, made integer, ms numeric);
do $$
declare
  began timestamptz;
  made integer;
begin
  for n in 2 .. 501 loop
    began := clock_timestamp();
    made := postrider.publish('publish_cost.b.c', json_build_object('n', n, 'text', repeat('x', 1000)));
    insert into taken values (n, made, extract(epoch from clock_timestamp() - began) * 1000);
  end loop;
end $$;
select min(made) as least_made, max(made) as most_made, round((array_agg(ms order by n))[1], 2) as first_ms,
       round(percentile_cont(0.5) within group (order by ms)::numeric, 2) as median_ms,
       round(percentile_cont(0.99) within group (order by ms)::numeric, 2) as p99_ms
  from taken;
rollback;
