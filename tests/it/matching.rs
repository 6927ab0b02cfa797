//! Many at once, by filter: replayed, cancelled, counted first.
