//! Postrider delivers webhooks out of PostgreSQL.
//!
//! The data's way is the folder list, and arrows point down only: a part names parts above it in this table, and
//! only those that its row says. `tests/it/architecture.rs` checks it.
//!
//! | part | owns | may name |
//! |---|---|---|
//! | `delivery` | one claimed delivery and its endpoint, as shapes | the nouns: delivery, reply, policy, signing |
//! | `reply` | what came back of one try | the nouns |
//! | `policy` | what a reply means, and when to try again | the nouns |
//! | `store` | every statement; alone knows tokio-postgres | the nouns |
//! | `cluster` | a private PostgreSQL server | nothing |
//! | `cli` | the command line; alone prints | everything |

pub mod cluster;
pub mod store;

pub mod cli;
