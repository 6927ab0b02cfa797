//! The password file.
