//! The event that refuses to be deferred: delivered within the time, or an error and nothing left to send.
