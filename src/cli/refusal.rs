//! From a refusal of the schema to what the user can do about it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "says what became of each id"
)]

use super::{Exit, Failure};
use crate::harmless;
use crate::store::{self, Refused};

/// The failure to report: with its own next step where the schema refused, else as it is.
pub(super) fn explain(error: store::Error) -> anyhow::Error {
    let Some(refusal) = error.refusal() else {
        return error.into();
    };
    let (exit, hint) = next_step(refusal.kind);
    let mut what = refusal.message;
    if let Some(detail) = refusal.detail {
        what.push_str(": ");
        what.push_str(detail.trim_end_matches('.'));
    }
    Failure::new(exit, harmless::line(&what), hint).into()
}

/// What cannot be right as it was typed is a usage error.
fn next_step(kind: Refused) -> (Exit, &'static str) {
    let exit = match kind {
        Refused::NoSuchDelivery
        | Refused::InFlight
        | Refused::Finished
        | Refused::NoSuchEndpoint
        | Refused::EndpointDisabled
        | Refused::Rejected
        | Refused::NotDelivered
        | Refused::NotTaken
        | Refused::WatchNameTaken
        | Refused::NoSuchWatch
        | Refused::Purged
        | Refused::NotOrdered
        | Refused::EventIdTaken
        | Refused::NameTaken => Exit::Failures,
        Refused::NotWatchable
        | Refused::OtherTenant
        | Refused::NoFilter
        | Refused::WrongStatus
        | Refused::NoSuchPolicy
        | Refused::NotJson
        | Refused::Value => Exit::Usage,
    };
    (exit, hint(kind))
}

fn hint(kind: Refused) -> &'static str {
    match kind {
        Refused::NoSuchDelivery => {
            "find it with `postrider delivery list`; finished deliveries may have been pruned"
        }
        Refused::InFlight => {
            "wait for the result of this try (`postrider delivery show ID`), then replay it if it is still needed"
        }
        Refused::Finished => {
            "only queued and failed deliveries can be cancelled; nothing is left to do for this one"
        }
        Refused::NoSuchEndpoint => {
            "`postrider endpoint list` shows those there are; `postrider endpoint add` makes one"
        }
        Refused::EndpointDisabled => {
            "see why with `postrider endpoint show NAME`, then `postrider endpoint enable NAME`"
        }
        Refused::Rejected => {
            "correct the event or the endpoint: as it is, it would be refused again; `postrider delivery show ID` shows the whole exchange"
        }
        Refused::NotDelivered => {
            "it is not tried again, though it may have arrived if no answer came; send it again, without --wait to have it retried"
        }
        Refused::NotTaken => {
            "nothing was sent and nothing will be; start a worker with `postrider worker`, see the endpoint with `postrider endpoint show NAME`, and send it again"
        }
        Refused::NotWatchable => {
            "`postrider watch --help` says what each option takes; names of columns are written without quotes"
        }
        Refused::WatchNameTaken => {
            "choose another --name, or end that one with `postrider unwatch NAME` first"
        }
        Refused::NoSuchWatch => "`postrider watches` lists those there are",
        Refused::OtherTenant => {
            "leave --tenant out, or connect with the setting postrider.tenant of that tenant"
        }
        Refused::Purged => {
            "queue the event anew with `postrider send`; `postrider prune --dry-run` shows for how long payloads are kept"
        }
        Refused::NotOrdered => {
            "nothing holds the rest there; end one delivery with `postrider delivery cancel ID`"
        }
        Refused::NoFilter => {
            "say which ones: --endpoint, --event-type, --status, --since, --until, or --all"
        }
        Refused::WrongStatus => {
            "exhausted and delivered ones can be replayed, queued and failed ones cancelled"
        }
        Refused::EventIdTaken => {
            "nothing was queued; look at it with `postrider delivery show EVENT_ID`, or send it again with `postrider replay ID`"
        }
        Refused::NameTaken => {
            "choose another --name, or look at it with `postrider endpoint show NAME`"
        }
        Refused::NoSuchPolicy => {
            "standard, exponential, frappe and once are there from the start; others are rows of postrider.retry_policies"
        }
        Refused::NotJson => {
            "correct it, or send bytes that are not JSON with --body FILE --content-type TYPE"
        }
        Refused::Value => {
            "correct the value; --help and the column comments of the schema `postrider` say what is allowed"
        }
    }
}

/// What is printed of an id that went well: the action did something, or there was nothing to do.
pub(super) struct Words {
    pub(super) done: &'static str,
    pub(super) nothing_to_do: &'static str,
}

/// Does the same to each id, to the end, and fails when some of them were refused.
pub(super) async fn each(
    ids: &[i64],
    words: &Words,
    action: impl AsyncFn(i64) -> Result<bool, store::Error>,
) -> anyhow::Result<Exit> {
    let mut refused = 0;
    for &id in ids {
        match action(id).await {
            Ok(true) => println!("delivery {id}: {}", words.done),
            Ok(false) => println!("delivery {id}: {}", words.nothing_to_do),
            // Anything but a refusal of this one would happen to all the others too.
            Err(error) if ids.len() == 1 || error.refusal().is_none() => {
                return Err(explain(error));
            }
            Err(error) => {
                refused += 1;
                eprintln!("delivery {id}: not {}: {}", words.done, explain(error));
            }
        }
    }
    if refused == 0 {
        return Ok(Exit::Done);
    }
    let what = format!(
        "{refused} of {} deliveries were not {}",
        ids.len(),
        words.done
    );
    Err(Failure::new(
        Exit::Failures,
        what,
        "the lines above say why; `postrider delivery show ID` says more",
    )
    .into())
}

/// The failure of a name that no endpoint has.
pub(super) fn no_such_endpoint(name: &str) -> anyhow::Error {
    let (exit, hint) = next_step(Refused::NoSuchEndpoint);
    Failure::new(
        exit,
        format!("there is no endpoint {}", harmless::line(name)),
        hint,
    )
    .into()
}
