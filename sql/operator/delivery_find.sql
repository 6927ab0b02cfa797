-- The deliveries that carry an event id: one per endpoint at most.
--   $1 text  event id
-- Returns: id bigint, endpoint text; at most 20 rows, newest first.
-- Asks endpoint by endpoint (OFFSET 0 keeps it so): the unique index begins with the endpoint, and history is large.
select d.id, e.name as endpoint
  from postrider.endpoints e
 cross join lateral (
   select r.id from postrider.deliveries r where r.endpoint = e.name and r.event_id = $1::text offset 0
 ) d
 order by d.id desc
 limit 20;
