//! The statements of `sql/worker/`, and the settings that their sessions have.

use tokio_postgres::types::Type;

/// What every session of a worker is told first. The statements are written for index scans in index order; a planner
/// without statistics, or with those of a table that was empty an hour ago, must not choose otherwise.
pub const SESSION: [&str; 8] = [
    "set enable_seqscan = off",
    "set enable_hashjoin = off",
    "set enable_mergejoin = off",
    "set enable_bitmapscan = off",
    "set jit = off",
    // A person who holds a row's lock in an open transaction must not hold up a batch for longer.
    "set lock_timeout = '5s'",
    "set plan_cache_mode = force_generic_plan",
    "set default_transaction_isolation = 'read committed'",
];

/// One statement of `sql/worker/`: its text and the types of its parameters.
#[derive(Debug)]
pub struct Statement {
    /// File name without `.sql`.
    pub name: &'static str,
    /// The file.
    pub sql: &'static str,
    /// `$1`, `$2`, ...
    pub types: &'static [Type],
}

macro_rules! statement {
    ($name:literal, [$($ty:ident),*]) => {
        Statement {
            name: $name,
            sql: include_str!(concat!("../../../sql/worker/", $name, ".sql")),
            types: &[$(Type::$ty),*],
        }
    };
}

/// Every statement that a worker sends.
pub static STATEMENTS: [&Statement; 12] = [
    &CLAIM,
    &RECORD,
    &LOCKABLE,
    &RELEASE,
    &RETIRE,
    &ENDPOINTS,
    &ARRIVE,
    &LEAVE,
    &PARTITIONS,
    &PUBLISH,
    &PRUNE,
    &FOLD,
];

#[rustfmt::skip]
pub(super) static CLAIM: Statement = statement!("claim", [
    TEXT, INT4, INT4, TEXT, INT8, INT8, INT4, INT8, TEXT_ARRAY, TIMESTAMPTZ_ARRAY, INT8_ARRAY
]);
#[rustfmt::skip]
pub(super) static RECORD: Statement = statement!("record", [
    INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY, INT4_ARRAY, TEXT_ARRAY,
    INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BYTEA_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT
]);
pub(super) static LOCKABLE: Statement = statement!("lockable", [INT8_ARRAY]);
pub(super) static RELEASE: Statement = statement!("release", [INT8_ARRAY, INT8_ARRAY]);
pub(super) static RETIRE: Statement = statement!("retire", [TEXT_ARRAY, INT4]);
pub(super) static ENDPOINTS: Statement = statement!("endpoints", [TEXT_ARRAY]);
pub(super) static ARRIVE: Statement = statement!("arrive", [TEXT, TEXT, INT4, TEXT]);
pub(super) static LEAVE: Statement = statement!("leave", [TEXT]);
pub(super) static PUBLISH: Statement = statement!("publish", [INT4]);
pub(super) static PARTITIONS: Statement = statement!("partitions", [TIMESTAMPTZ, TIMESTAMPTZ]);
pub(super) static PRUNE: Statement = statement!("prune", [INT4]);
pub(super) static FOLD: Statement = statement!("fold", [INT4]);
