//! An event reaches every endpoint that asked for it, and breaks no caller's transaction.
