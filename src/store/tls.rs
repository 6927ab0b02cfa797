//! TLS towards the server.
