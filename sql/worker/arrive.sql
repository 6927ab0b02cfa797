-- Registers a worker, and forgets those that were killed long ago.
--
-- $1 text    id
-- $2 text    hostname
-- $3 integer pid
-- $4 text    version
--
-- Returns nothing.
with gone as (
  delete from postrider.workers w where w.last_seen_at < now() - interval '1 day' and w.id <> $1::text
)
insert into postrider.workers as w (id, hostname, pid, version)
values ($1::text, $2::text, $3::integer, $4::text)
on conflict (id) do update
   set hostname = excluded.hostname, pid = excluded.pid, version = excluded.version, started_at = now(), last_seen_at = now(),
       sleeping_until = null
