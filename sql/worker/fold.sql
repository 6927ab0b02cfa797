-- Adds tries that were counted apart up into postrider.reports; see postrider.fold_reports.
--
-- $1 integer rows of postrider.report_changes at most
--
-- Returns folded: how many. Fewer than $1: nothing more is there, or another session is at it.
select postrider.fold_reports($1::integer) as folded
