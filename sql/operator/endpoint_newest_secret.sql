-- The newest secret of an endpoint, to be shown once to who added it.
--   $1 text  endpoint
-- Returns one row: secret text.
select s.secret from postrider.endpoint_secrets s where s.endpoint = $1::text order by s.id desc limit 1;
