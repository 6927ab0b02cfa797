-- Gives an endpoint a new secret; the old ones go on signing for a while.
--   $1 text              endpoint
--   $2 double precision  that while, in seconds
-- Returns one row: secret text. Raises PR004 when there is no such endpoint.
select postrider.rotate_secret($1::text, make_interval(secs => $2::double precision)) as secret;
