-- Sends an event at once and waits for the receiver's answer.
--   $1 text             endpoint
--   $2 text             event type
--   $3 text             payload, JSON text, sent as it is
--   $4 double precision how long to wait, in seconds
-- Returns one row: status_code integer, response_body bytea (the first 16 KiB).
-- Fails with PR004, PR005, PR006 rejected, PR007 failed, PR008 no worker took it in time, 22P02 not JSON, 22023 timeout out of range.
call postrider.deliver_now($1::text, $2::text, $3::text::json, make_interval(secs => $4::double precision));
