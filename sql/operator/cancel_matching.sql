-- Ends one batch of open deliveries.
--   $1 text     endpoint; null: any
--   $2 text     event type; null: any
--   $3 text     status: queued or failed; null: either
--   $4 text     queued at this time or later, a timestamp with time zone
--   $5 text     queued before this time
--   $6 integer  rows at most
-- Returns one row: cancelled bigint.
select postrider.cancel_matching(
         endpoint => $1::text, event_type => $2::text, status => $3::text,
         since => $4::text::timestamptz, until => $5::text::timestamptz, max_rows => $6::integer
       ) as cancelled;
