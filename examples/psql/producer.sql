-- Sends events from psql, and so from anything that can run a SQL script.
\set ON_ERROR_STOP on
\set QUIET on
set client_min_messages = warning;

create table if not exists orders (
  id          bigint generated always as identity primary key,
  customer    text not null,
  total_cents integer not null
);

-- One event, in the transaction that makes it true: both are committed, or neither.
begin;
insert into orders (customer, total_cents) values ('Ada', 4200) returning id as order_id \gset
insert into postrider.deliveries (endpoint, event_type, event_id, payload)
values ('crm', 'order.created', format('order-%s-created', :order_id),
        json_build_object('type', 'order.created', 'data', json_build_object('id', :order_id, 'total_cents', 4200)));
commit;
\echo order :order_id is queued

-- A batch in one statement. Its event ids name the work, not the run: a job that runs again sends nothing twice.
insert into postrider.deliveries (endpoint, event_type, event_id, payload)
select 'crm', 'price.changed', 'prices-7-' || item,
       json_build_object('type', 'price.changed', 'data', json_build_object('item', item, 'cents', cents))
  from unnest(array['lamp', 'desk', 'chair'], array[1900, 24900, 9900]) as price (item, cents)
on conflict (endpoint, event_id) do nothing;
\echo :ROW_COUNT prices are queued

-- To every endpoint that asked for such events, whatever their names. The bytes are sent as they stand here.
select postrider.publish('shop.opened', '{"type":"shop.opened","data":{"city":"Zürich"}}', 'shop-opened-3') as endpoints \gset
\echo published to :endpoints endpoints
