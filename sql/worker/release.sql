-- Gives deliveries back unsent; they are due again at once.
--
-- $1 bigint[] delivery_id
-- $2 bigint[] claim_no: the claim that is given up; the fence
--
-- Returns the delivery_id of each row given back. One that is missing had another owner by then.
with locked as materialized (
  select d.id from postrider.deliveries d where d.id = any ($1::bigint[]) order by d.id for no key update
)
update postrider.deliveries d
   set lease_expires_at = null, leased_by = null, claim_no = d.claim_no + 1
  from unnest($1::bigint[], $2::bigint[]) as r (delivery_id, claim_no)
 where d.id = any (array(select l.id from locked l)) and d.id = r.delivery_id and d.claim_no = r.claim_no
returning d.id as delivery_id
