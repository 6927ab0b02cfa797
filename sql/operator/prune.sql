-- One step of retention.
--   $1 integer  rows at most
-- Returns a row per kind: kind text, pruned bigint (rows; of attempts days), more boolean (there is more to do now), waits text (what
--   had to be left for later, and why; null: nothing). No row: another session is at it.
select p.kind, p.pruned, p.more, p.waits from postrider.prune($1::integer) p;
