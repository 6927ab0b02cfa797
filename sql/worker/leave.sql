-- Takes a worker that stops off the list.
--
-- $1 text id
--
-- Returns nothing.
delete from postrider.workers w where w.id = $1::text
