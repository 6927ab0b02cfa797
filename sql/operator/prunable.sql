-- What retention would remove now.
-- Returns a row per kind: kind text, kept_for text (null: for ever), due bigint, exact boolean (false: due is an estimate),
--   oldest text (RFC 3339; null: there is none).
select p.kind, p.kept_for::text as kept_for, p.due, p.exact,
       coalesce(to_char(p.oldest at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), p.oldest::text) as oldest
  from postrider.prunable() p;
