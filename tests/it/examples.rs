//! A producer and a receiver in every language, run as a reader would.
