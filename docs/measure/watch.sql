-- What a watch costs the writer of 100,000 rows in one statement, beside a table with a bare AFTER trigger that copies the rows. In a database with
-- the schema, as its owner, with no worker running: psql -d DATABASE -f docs/measure/watch.sql
\set QUIET on
\set ON_ERROR_STOP on
\pset pager off
set client_min_messages = warning;
drop schema if exists watch_cost cascade;
create schema watch_cost;
set search_path = watch_cost, pg_catalog;
create table copied (id bigint, customer text, total numeric, at timestamptz);
create table by_row (like copied);
create table by_statement (like copied);
create table watched (like copied);
create function copy_row() returns trigger language plpgsql as
  'begin insert into watch_cost.copied values (new.id, new.customer, new.total, new.at); return null; end';
create trigger copies after insert on by_row for each row execute function copy_row();
create function copy_rows() returns trigger language plpgsql as 'begin insert into watch_cost.copied select * from added; return null; end';
create trigger copies after insert on by_statement referencing new table as added for each statement execute function copy_rows();
insert into postrider.endpoints (name, url) values ('watch-cost', 'http://127.0.0.1:9/') on conflict do nothing;
do $$ begin perform postrider.watch('watch_cost.watched', endpoint => 'watch-cost', operations => '{insert}', name => 'watch-cost'); end $$;
create table taken (what text, ms numeric);
do $$
declare
  began timestamptz;
  target text;
begin
  for n in 1 .. 7 loop
    foreach target in array array['by_row', 'by_statement', 'watched'] loop
      began := clock_timestamp();
      execute format('insert into watch_cost.%I select n, ''customer '' || n, n * 1.5, now() from generate_series(1, 100000) n', target);
      insert into watch_cost.taken values (target, extract(epoch from clock_timestamp() - began) * 1000);
    end loop;
    commit;
    truncate watch_cost.copied, watch_cost.by_row, watch_cost.by_statement, watch_cost.watched;
    delete from postrider.changes where watch = 'watch-cost';
    commit;
  end loop;
end $$;
select what, round(percentile_cont(0.5) within group (order by ms)::numeric) as median_ms,
       round((percentile_cont(0.5) within group (order by ms)
              / (select percentile_cont(0.5) within group (order by ms) from taken where what = 'by_row'))::numeric, 2) as of_row_trigger,
       round((percentile_cont(0.5) within group (order by ms)
              / (select percentile_cont(0.5) within group (order by ms) from taken where what = 'by_statement'))::numeric, 2) as of_statement_trigger
  from taken group by what order by median_ms;
do $$ begin perform postrider.unwatch('watch-cost'); end $$;
delete from postrider.endpoints where name = 'watch-cost';
drop schema watch_cost cascade;
