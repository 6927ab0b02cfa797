//! The edge towards receivers: a delivery becomes a request, the request is sent once, a reply comes back.
//!
//! Owns everything that knows HTTP clients, TLS and name resolution; no other module names reqwest. It does not know
//! which delivery is due, nor what a reply means: that is for the policy to judge.

mod client;
mod failure;
mod flood;
mod guard;
mod headers;
mod request;
mod resolver;
mod target;
mod tls;

pub use client::{Client, ClientError, Options};
pub use flood::{Flood, flood};
pub use guard::{Forbidden, Guard};
pub use request::{Request, Unbuildable, build};
pub use resolver::{Looking, Lookup, SystemLookup};
pub use tls::SystemRoots;
