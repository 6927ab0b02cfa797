//! Postrider delivers webhooks out of PostgreSQL: a row inserted in your transaction arrives, signed, retried, on record.
//!
//! The way of a delivery, and where each step lives:
//!
//! | step | module |
//! |---|---|
//! | claim: due rows under a lease, `FOR UPDATE SKIP LOCKED` | [`store`], [`worker`] |
//! | build: endpoint and frozen bytes become a request; sign | [`outbound`], [`signing`] |
//! | send: one physical HTTP try within one deadline | [`outbound`] |
//! | judge: a pure function from reply to verdict | [`policy`] |
//! | record: one statement for a batch, fenced by the claim number | [`store`], [`worker`] |
//!
//! Who may know whom. Arrows point down only; a test holds the code to it.
//!
//! | module | knows |
//! |---|---|
//! | [`delivery`], [`attempt`], [`reply`], [`policy`], [`signing`] | each other: the nouns, pure, no I/O, no clock |
//! | [`harmless`] | nothing of ours: what may be shown of somebody else's text |
//! | [`store`] | the nouns, [`harmless`]; alone names `tokio-postgres` |
//! | [`outbound`] | the nouns; alone names `reqwest` |
//! | [`worker`] | the nouns, [`store`], [`outbound`] |
//! | [`cluster`] | nothing of ours: a private PostgreSQL for demo, dev and tests |
//! | [`cli`] | everything |

pub mod delivery;
pub mod attempt;
pub mod reply;
pub mod policy;
pub mod signing;

pub mod harmless;

pub mod store;
pub mod outbound;

pub mod worker;
pub mod cluster;

pub mod cli;
