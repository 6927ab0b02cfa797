-- How many workers were seen within the last minute.
-- Returns one row: workers_alive bigint.
select count(*) as workers_alive from postrider.workers w where w.last_seen_at > now() - interval '1 min';
