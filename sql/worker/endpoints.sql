-- Reads endpoints as sending needs them.
--
-- $1 text[] names
--
-- Returns a row per endpoint: its settings, its policy, and its live secrets, newest first, with the milliseconds that each has
-- left (NULL: without end).
select e.name, e.revision, e.url, e.method, e.headers::text as headers,
       (extract(epoch from e.timeout) * 1000)::bigint as timeout_ms,
       e.signature_scheme, e.signature_header,
       p.kind, p.jitter, p.factor, p.retry_on,
       array(select (extract(epoch from n.delay) * 1000)::bigint from unnest(p.delays) with ordinality as n (delay, place) order by n.place) as delays_ms,
       (extract(epoch from p.base) * 1000)::bigint as base_ms,
       (extract(epoch from p.cap) * 1000)::bigint as cap_ms,
       array(select s.secret from postrider.endpoint_secrets s
              where s.endpoint = e.name and (s.expires_at is null or s.expires_at > now())
              order by s.created_at desc, s.id desc) as secrets,
       array(select case when s.expires_at < now() + interval '1 year' then (extract(epoch from s.expires_at - now()) * 1000)::bigint end
               from postrider.endpoint_secrets s
              where s.endpoint = e.name and (s.expires_at is null or s.expires_at > now())
              order by s.created_at desc, s.id desc) as secrets_left_ms
  from postrider.endpoints e
  join postrider.retry_policies p on p.name = e.retry_policy
 where e.name = any ($1::text[])
