-- Makes the day partitions of attempts that are missing around today and between two times.
--
-- $1 timestamptz first: NULL, or a try that has to find its day
-- $2 timestamptz last: likewise
--
-- Returns made: how many were made.
select postrider.make_attempt_partitions(
         (least($1::timestamptz, now() - interval '1 day') at time zone 'utc')::date,
         (greatest($2::timestamptz, now() + interval '7 days') at time zone 'utc')::date) as made
