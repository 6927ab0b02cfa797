//! The way of one attempt: build, send, judge, and what is to be recorded of it.
//!
//! Owns no state and no retry: a try that failed is reported, and the database says when the next one is due.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::clock::{DatabaseTime, Moment};
use crate::attempt::{Attempt, Next, Outcome, Reason};
use crate::delivery::{Delivery, Endpoint};
use crate::outbound::{self, Client, Request};
use crate::policy::{Verdict, judge};
use crate::reply::{Answer, Completeness, Failure, FailureKind, Reply};

/// How long past its deadline a try may go on with what has arrived by then: a status whose body stalls ends by the timer inside of
/// the try, not here. A caller of `deliver_now` waits twice as long for the result of a try under way.
const SLACK: Duration = Duration::from_millis(250);

/// A claimed delivery, its endpoint, and the lease that both are held under.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) delivery: Delivery,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) lease: Lease,
}

/// How long a claimed delivery is ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// From the claim on.
    pub(super) length: Duration,
    /// What of the end of it is kept for recording.
    pub(super) reserve: Duration,
    /// When it was claimed.
    pub(super) claimed: DatabaseTime,
    /// From the claim on, until the delivery's deadline, if that is near.
    pub(super) left: Option<Duration>,
}

impl Lease {
    /// How long a try may take that begins now, `timeout` at most; `None`: it must not begin. A worker that was stopped or swapped out
    /// after its claim finds here that the delivery may have another owner by now, or that its deadline has passed.
    fn budget(&self, timeout: Duration) -> Option<Duration> {
        let elapsed = self.claimed.elapsed();
        let budget = self
            .left
            .map_or(timeout, |left| timeout.min(left.saturating_sub(elapsed)));
        let fits = elapsed + budget + self.reserve <= self.length;
        (fits && !budget.is_zero()).then_some(budget)
    }

    /// Runs `send`, but not a step of it once the delivery's deadline is over; `None`: it is.
    ///
    /// The timer inside of `send` is not enough: a process that stood still between connecting and writing, or a machine that was
    /// suspended, would first take the one step more that writes the request, and only then look at its timers.
    async fn within<T>(&self, send: impl Future<Output = T>) -> Option<T> {
        let mut send = pin!(send);
        poll_fn(|context| {
            let over = |left| self.claimed.elapsed() > left + SLACK;
            if self.left.is_some_and(over) {
                return Poll::Ready(None);
            }
            send.as_mut().poll(context).map(Some)
        })
        .await
    }
}

/// What is left to be told of a claim.
#[derive(Debug)]
pub(super) enum Report {
    /// A try was made.
    Attempt(Box<Attempt>),
    /// Nothing was sent; somebody else may.
    GiveBack { delivery_id: i64, claim_no: i64 },
}

/// Makes one physical try. `cut` ends it unanswered, when the worker has to stop.
pub(super) async fn make(job: Job, client: &Client, cut: &CancellationToken) -> Report {
    let Some(budget) = job.lease.budget(job.endpoint.timeout) else {
        return Report::GiveBack {
            delivery_id: job.delivery.id,
            claim_no: job.delivery.claim_no,
        };
    };
    let started_at = job.lease.claimed.now();
    let began = Moment::now();
    let request = match outbound::build(&job.endpoint, &job.delivery, started_at.timestamp()) {
        Ok(request) => Request {
            timeout: budget,
            ..request
        },
        Err(cause) => {
            let verdict = Verdict::Unbuildable {
                error: cause.to_string(),
            };
            return report(&job, started_at, began.elapsed(), None, None, verdict);
        }
    };
    let reply = tokio::select! {
        reply = job.lease.within(client.send(&request)) => {
            reply.unwrap_or_else(|| unanswered(began.elapsed()))
        }
        () = cut.cancelled() => return cut_off(&job, started_at, began.elapsed(), &request),
    };
    let verdict = judge(
        &reply,
        &job.endpoint.policy.retry_on,
        job.lease.claimed.now(),
    );
    report(
        &job,
        started_at,
        reply.duration,
        Some(&request),
        Some(reply),
        verdict,
    )
}

/// What a try comes to that was given up at the deadline of its delivery.
fn unanswered(duration: Duration) -> Reply {
    Reply {
        answer: Answer::Failure(Failure {
            kind: FailureKind::Timeout,
            message: "the delivery's deadline passed while the worker stood still".to_owned(),
        }),
        duration,
        remote_addr: None,
    }
}

/// The worker stopped first. The receiver may have got the request, so it counts as a try, and is due again at once.
fn cut_off(job: &Job, started_at: DateTime<Utc>, duration: Duration, request: &Request) -> Report {
    let mut attempt = blank(job, started_at, duration, Some(request));
    attempt.outcome = Outcome::Lost;
    attempt.next = retry_or(job, Reason::Lost, |_| Duration::ZERO);
    attempt.error_kind = Some("lost");
    attempt.error = Some("the worker was stopped before the reply".to_owned());
    Report::Attempt(Box::new(attempt))
}

fn report(
    job: &Job,
    started_at: DateTime<Utc>,
    duration: Duration,
    request: Option<&Request>,
    reply: Option<Reply>,
    verdict: Verdict,
) -> Report {
    let mut attempt = blank(job, started_at, duration, request);
    (attempt.outcome, attempt.next, attempt.error) = conclude(job, verdict);
    match reply {
        Some(reply) => {
            attempt.remote_addr = reply.remote_addr;
            match reply.answer {
                Answer::Response(response) => {
                    attempt.status_code = Some(response.status);
                    attempt.response_truncated = response.completeness == Completeness::Truncated;
                    attempt.response_headers = response.headers;
                    attempt.response_body = Some(response.body);
                }
                Answer::Failure(failure) => attempt.error_kind = Some(failure.kind.as_str()),
            }
        }
        None => attempt.error_kind = Some("unbuildable"),
    }
    Report::Attempt(Box::new(attempt))
}

/// From the verdict to the try's outcome and the delivery's next state.
fn conclude(job: &Job, verdict: Verdict) -> (Outcome, Next, Option<String>) {
    match verdict {
        Verdict::Delivered => (Outcome::Delivered, Next::Delivered, None),
        Verdict::Retry { not_before, error } => {
            let next = retry_or(job, Reason::RetriesUsed, |retry| {
                let delay = job.endpoint.policy.delay(retry, rand::random());
                delay.max(not_before.unwrap_or_default())
            });
            (Outcome::Retry, next, Some(error))
        }
        Verdict::Rejected { error } => (
            Outcome::Rejected,
            Next::Exhausted(Reason::Rejected),
            Some(error),
        ),
        Verdict::Gone { error } => (
            Outcome::Rejected,
            Next::Exhausted(Reason::Gone),
            Some(error),
        ),
        Verdict::Blocked { error } => (
            Outcome::Blocked,
            Next::Exhausted(Reason::Blocked),
            Some(error),
        ),
        Verdict::Unbuildable { error } => (
            Outcome::Unbuildable,
            Next::Exhausted(Reason::Unbuildable),
            Some(error),
        ),
    }
}

/// The next retry of the present budget, or the end for `reason` when none is left.
fn retry_or(job: &Job, reason: Reason, delay: impl FnOnce(u32) -> Duration) -> Next {
    let delivery = &job.delivery;
    if delivery.tries_used >= delivery.max_retries {
        Next::Exhausted(reason)
    } else {
        Next::Retry(delay(delivery.tries_used.saturating_add(1)))
    }
}

fn blank(
    job: &Job,
    started_at: DateTime<Utc>,
    duration: Duration,
    request: Option<&Request>,
) -> Attempt {
    Attempt {
        delivery_id: job.delivery.id,
        claim_no: job.delivery.claim_no,
        endpoint: job.delivery.endpoint.clone(),
        started_at,
        duration,
        outcome: Outcome::Lost,
        next: Next::Exhausted(Reason::Lost),
        status_code: None,
        error_kind: None,
        error: None,
        request_headers: request.map(Request::recorded_headers).unwrap_or_default(),
        response_headers: Vec::new(),
        response_body: None,
        response_truncated: false,
        remote_addr: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Claimed `age` ago by a worker that has stood still since.
    fn lease(age: Duration, left: Option<Duration>) -> Lease {
        Lease {
            length: 20 * SECOND,
            reserve: 2 * SECOND,
            claimed: DatabaseTime::new(DateTime::UNIX_EPOCH, Moment::ago(age)),
            left,
        }
    }

    #[test]
    fn a_try_gets_no_more_time_than_its_deadline_leaves() {
        let fresh = lease(Duration::ZERO, Some(3 * SECOND));
        let older = lease(2 * SECOND, Some(3 * SECOND));

        assert_eq!(
            lease(Duration::ZERO, None).budget(15 * SECOND),
            Some(15 * SECOND)
        );
        assert_eq!(fresh.budget(SECOND), Some(SECOND));
        let budget = fresh.budget(15 * SECOND).expect("there is time");
        assert!(budget <= 3 * SECOND && budget > 2 * SECOND, "{budget:?}");
        let budget = older.budget(15 * SECOND).expect("there is time");
        assert!(budget <= SECOND, "{budget:?}");
    }

    #[test]
    fn a_worker_that_stood_still_past_lease_or_deadline_begins_no_try() {
        assert_eq!(lease(4 * SECOND, None).budget(15 * SECOND), None);
        assert_eq!(lease(3 * SECOND, Some(3 * SECOND)).budget(SECOND), None);
    }

    #[tokio::test]
    async fn a_try_that_stood_still_past_its_deadline_takes_no_step_more() {
        let writes =
            std::future::poll_fn(|_| -> Poll<()> { panic!("this would write the request") });

        let sent = lease(4 * SECOND, Some(3 * SECOND)).within(writes).await;

        assert_eq!(sent, None);
        let kept = lease(2 * SECOND, Some(3 * SECOND))
            .within(async { 1 })
            .await;
        assert_eq!(kept, Some(1));
        assert_eq!(lease(30 * SECOND, None).within(async { 2 }).await, Some(2));
    }
}
