-- Puts the caller's own secret in the place of those an endpoint has. Meant for the transaction that adds it.
--   $1 text  endpoint
--   $2 text  secret: whsec_ and the base64 of 24 to 64 bytes
-- Returns nothing.
update postrider.endpoint_secrets s set secret = $2::text where s.endpoint = $1::text;
