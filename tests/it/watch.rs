//! A table's changes become events, in the writer's transaction and never at its cost.
