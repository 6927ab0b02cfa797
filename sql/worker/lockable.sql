-- Tells which results could be written at this moment: nobody else holds a lock on their delivery, or on what is known of its
-- endpoint's health.
--
-- $1 bigint[] delivery_id
--
-- Returns the delivery_id of each. One that is missing is locked by another transaction, or gone.
with named as materialized (
  select distinct d.endpoint from postrider.deliveries d where d.id = any ($1::bigint[])
),
healthy as materialized (
  select h.endpoint
    from postrider.endpoint_health h
   where h.endpoint = any (array(select n.endpoint from named n))
     for no key update skip locked
)
select d.id as delivery_id
  from postrider.deliveries d
 where d.id = any ($1::bigint[])
   and (d.endpoint = any (array(select f.endpoint from healthy f))
        or not exists (select from postrider.endpoint_health h where h.endpoint = d.endpoint))
   for no key update of d skip locked
