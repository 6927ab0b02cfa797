-- Tells which deliveries nobody else holds a lock on at this moment.
--
-- $1 bigint[] delivery_id
--
-- Returns the delivery_id of each. One that is missing is locked by another transaction, or gone.
select d.id as delivery_id
  from postrider.deliveries d
 where d.id = any ($1::bigint[])
   for no key update skip locked
