-- Makes events and deliveries of changes that watched tables have left behind, in order, one worker at a time.
--
-- $1 integer chunks: deal with at most this many
--
-- Returns done: how many chunks were dealt with; 0: none waits, or another worker is at it.
select postrider.publish_changes($1::integer) as done
