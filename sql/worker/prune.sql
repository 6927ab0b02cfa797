-- One step of retention; see postrider.prune.
--
-- $1 integer rows at most
--
-- Returns a row per kind: kind, pruned (rows; of attempts days), more (there is more to do now), waits (what had to be left for later, and
-- why). No row: another session is at it.
select p.kind, p.pruned, p.more, p.waits from postrider.prune($1::integer) p
