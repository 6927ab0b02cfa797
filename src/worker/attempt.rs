//! The way of one attempt: build, send, judge, and what is to be recorded of it.
//!
//! Owns no state and no retry: a try that failed is reported, and the database says when the next one is due.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use super::clock::{DatabaseTime, Moment};
use crate::attempt::{Attempt, Next, Outcome, Reason};
use crate::delivery::{Delivery, Endpoint};
use crate::outbound::{self, Client, Request};
use crate::policy::{Verdict, judge};
use crate::reply::{Answer, Completeness, Reply};

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
}

impl Lease {
    /// Whether a whole try of at most `timeout` still fits. A worker that was stopped or swapped out after its claim finds here that
    /// the delivery may have another owner by now.
    fn covers(&self, timeout: Duration) -> bool {
        self.claimed.elapsed() + timeout + self.reserve <= self.length
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
    if !job.lease.covers(job.endpoint.timeout) {
        return Report::GiveBack {
            delivery_id: job.delivery.id,
            claim_no: job.delivery.claim_no,
        };
    }
    let started_at = job.lease.claimed.now();
    let began = Moment::now();
    let request = match outbound::build(&job.endpoint, &job.delivery, started_at.timestamp()) {
        Ok(request) => request,
        Err(cause) => {
            let verdict = Verdict::Unbuildable {
                error: cause.to_string(),
            };
            return report(&job, started_at, began.elapsed(), None, None, verdict);
        }
    };
    let reply = tokio::select! {
        reply = client.send(&request) => reply,
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
