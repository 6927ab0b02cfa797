//! The doorbell: NOTIFY on channel `postrider`, a hint that there may be something to claim.
//!
//! Owns one session that does nothing else and is always drained. Nothing depends on it: a worker that hears nothing polls.

use std::future::poll_fn;

use tokio_postgres::AsyncMessage;

use super::connect::Connector;
use super::{Error, Unreachable};

/// Listens until the session ends, and says why it ended.
///
/// `rung` is called for every ring, and once as soon as the session listens, since whatever rang before went unheard.
pub async fn listen(connector: &Connector, rung: impl Fn()) -> Error {
    let (client, mut connection) = match connector.connect().await {
        Ok(session) => session,
        Err(error) => return error,
    };
    let mut subscribe = std::pin::pin!(client.batch_execute("listen postrider"));
    let mut subscribed = false;
    loop {
        tokio::select! {
            outcome = &mut subscribe, if !subscribed => match outcome {
                Ok(()) => {
                    subscribed = true;
                    rung();
                }
                Err(error) => return error.into(),
            },
            message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                Some(Ok(AsyncMessage::Notification(_))) => rung(),
                Some(Ok(_)) => {}
                Some(Err(error)) => return error.into(),
                None => return Error::NoDatabase {
                    target: connector.display().to_owned(),
                    why: Unreachable::Lost,
                    cause: None,
                },
            },
        }
    }
}
