//! What is old goes, in small steps, and nothing that is open.
