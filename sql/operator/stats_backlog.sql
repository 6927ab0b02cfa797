-- What waits for a worker at this moment, and who is there to work.
--   $1 text  endpoint; null: all
-- Returns one row: due bigint, oldest_due text (RFC 3339), oldest_due_seconds bigint, held bigint (due, but the endpoint is
--   paused or disabled, or ordered and another delivery in front), workers_alive bigint (seen within the last minute).
select coalesce(sum(b.due), 0)::bigint as due,
       coalesce(to_char(min(b.oldest_due) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), min(b.oldest_due)::text) as oldest_due,
       case when isfinite(min(b.oldest_due)) then extract(epoch from now() - min(b.oldest_due))::bigint end as oldest_due_seconds,
       (select count(*)
          from postrider.deliveries d join postrider.endpoints e on e.name = d.endpoint and (e.paused or not e.enabled)
         where d.next_retry <= now() and ($1::text is null or d.endpoint = $1::text))
       + (select count(*)
            from postrider.endpoints e
           cross join lateral (
              select f.id from postrider.deliveries f
               where f.endpoint >= e.name and f.endpoint <= e.name and f.next_retry is not null
               order by f.endpoint, f.id limit 1) h
            join postrider.deliveries d on d.endpoint = e.name and d.next_retry <= now() and d.id > h.id
           where e.ordered and e.enabled and not e.paused and ($1::text is null or e.name = $1::text)
             and coalesce(d.lease_expires_at <= now(), true)) as held,
       (select count(*) from postrider.workers w where w.last_seen_at > now() - interval '1 min') as workers_alive
  from postrider.due_now b
 where $1::text is null or b.endpoint = $1::text;
