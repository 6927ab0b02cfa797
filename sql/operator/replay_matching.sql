-- Sends one batch of finished deliveries again.
--   $1 text     endpoint; null: any
--   $2 text     exhausted_reason; null: any
--   $3 text     status: exhausted or delivered
--   $4 text     finished at this time or later, a timestamp with time zone; null: any
--   $5 text     finished before this time
--   $6 integer  rows at most
-- Returns one row: replayed bigint.
select postrider.replay_matching(
         endpoint => $1::text, reason => $2::text, status => $3::text,
         since => $4::text::timestamptz, until => $5::text::timestamptz, max_rows => $6::integer
       ) as replayed;
