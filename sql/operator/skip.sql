-- Cancels the delivery that holds the rest of an ordered endpoint.
--   $1 text    endpoint
--   $2 bigint  seen: skip only this one; null: whichever it is
-- Returns one row: skipped bigint, its id (null: there is nothing to skip, or it is not the one that was seen). Raises PR004, PR015.
select postrider.skip($1::text, $2::bigint) as skipped;
