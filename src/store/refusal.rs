//! What the schema refused to do, sorted by what a person would do about it.
//!
//! Owns the reading of SQLSTATEs and constraint names: the schema's own PR001 to PR017, and the rules of its tables.

use tokio_postgres::error::DbError;

use super::Error;

/// A statement that the schema refused, with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which kind.
    pub kind: Refused,
    /// The server's message, or the rule as a sentence. May quote what the user gave.
    pub message: String,
    /// What the server added to it.
    pub detail: Option<String>,
}

/// The kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// PR001: no delivery has this id.
    NoSuchDelivery,
    /// PR002: its try is going on.
    InFlight,
    /// PR003: it ended already.
    Finished,
    /// PR004, or a foreign key: no endpoint has this name.
    NoSuchEndpoint,
    /// PR005: the endpoint takes nothing.
    EndpointDisabled,
    /// PR006: waited for, and refused for good.
    Rejected,
    /// PR007: waited for, and failed or not answered.
    NotDelivered,
    /// PR008: waited for, and not even begun.
    NotTaken,
    /// PR012: an argument of watch makes no sense.
    NotWatchable,
    /// PR013: a watch has this name already.
    WatchNameTaken,
    /// PR014: no watch has this name.
    NoSuchWatch,
    /// PR011: the session acts for another tenant.
    OtherTenant,
    /// PR010: what it carried was removed by retention.
    Purged,
    /// PR015: its deliveries do not wait for each other.
    NotOrdered,
    /// PR016: nothing says which deliveries are meant.
    NoFilter,
    /// PR017: deliveries with this status cannot be replayed, or cancelled.
    WrongStatus,
    /// The endpoint had a delivery with this event id before.
    EventIdTaken,
    /// An endpoint has this name already.
    NameTaken,
    /// A foreign key: no retry policy has this name.
    NoSuchPolicy,
    /// A text that must be JSON is not.
    NotJson,
    /// A value is outside what its column takes: a CHECK, or a value that PostgreSQL cannot hold.
    Value,
}

impl Error {
    /// What the schema refused, when that is what happened.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let Self::Query(cause) = self else {
            return None;
        };
        let said = cause.as_db_error()?;
        let kind = kind(said)?;
        Some(Refusal {
            kind,
            message: message(kind, said),
            // A CHECK's detail quotes the whole row, headers and all.
            detail: said
                .detail()
                .filter(|_| said.constraint().is_none())
                .map(str::to_owned),
        })
    }
}

fn message(kind: Refused, said: &DbError) -> String {
    match (kind, said.constraint()) {
        // Constraints are named as sentences about their table.
        (Refused::Value, Some(rule)) => {
            format!("a rule of the table says: {}", rule.replace('_', " "))
        }
        (Refused::NotJson, _) => "the payload is not JSON".to_owned(),
        (Refused::NoSuchEndpoint, Some(_)) => format!("there is no endpoint {}", key(said)),
        (Refused::NoSuchPolicy, _) => format!("there is no retry policy {}", key(said)),
        (Refused::EventIdTaken, _) => format!(
            "there is a delivery with this event id already: {}",
            key(said)
        ),
        (Refused::NameTaken, _) => format!("there is an endpoint {} already", key(said)),
        _ => said.message().to_owned(),
    }
}

/// The values that a key constraint is about: `Key (endpoint)=(shop) is not present ...` in any language.
fn key(said: &DbError) -> &str {
    said.detail()
        .and_then(|detail| detail.split_once(")=(")?.1.rsplit_once(')'))
        .map_or("of this name", |(values, _)| values)
}

fn kind(said: &DbError) -> Option<Refused> {
    Some(match (said.code().code(), said.constraint()) {
        ("PR001", _) => Refused::NoSuchDelivery,
        ("PR002", _) => Refused::InFlight,
        ("PR003", _) => Refused::Finished,
        ("PR004", _) | ("23503", Some("deliveries_endpoint_exists")) => Refused::NoSuchEndpoint,
        ("PR005", _) => Refused::EndpointDisabled,
        ("PR006", _) => Refused::Rejected,
        ("PR007", _) => Refused::NotDelivered,
        ("PR008", _) => Refused::NotTaken,
        ("PR012", _) => Refused::NotWatchable,
        ("PR013", _) => Refused::WatchNameTaken,
        ("PR014", _) => Refused::NoSuchWatch,
        ("PR011", _) => Refused::OtherTenant,
        ("PR010", _) => Refused::Purged,
        ("PR015", _) => Refused::NotOrdered,
        ("PR016", _) => Refused::NoFilter,
        ("PR017", _) => Refused::WrongStatus,
        ("23505", Some("deliveries_event_id_is_unique_per_endpoint")) => Refused::EventIdTaken,
        ("23505", Some("endpoints_pkey")) => Refused::NameTaken,
        ("23503", Some("endpoints_retry_policy_fkey")) => Refused::NoSuchPolicy,
        ("22P02", _) if said.message().contains("json") => Refused::NotJson,
        // 22: a value out of range or malformed; 23514: a CHECK; 42601: here only a jsonpath can have a syntax error.
        (code, _) if code.starts_with("22") || code == "23514" || code == "42601" => Refused::Value,
        _ => return None,
    })
}
