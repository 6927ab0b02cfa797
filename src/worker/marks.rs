//! Where to begin in each lane, while looking from its start is slow.
//!
//! What has ended leaves entries in the index that a claim walks along. They are forgotten as they are passed, unless some transaction
//! is open that might still see the rows: then they pile up in front of each lane, for as long as it is open. So once a claim was
//! slow to find anything, the next ones begin at the last known front of each lane. One thing would be overlooked: rows that their
//! transaction commits later than a second after it began, which stand before that front. Therefore each lane is still looked at from its start
//! now and then, the more seldom the longer that takes, and always again once it is quick.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use super::clock::Moment;
use crate::store::queue::{Claim, Front};

/// A claim that took so long to find its deliveries makes use of marks from then on.
const SLOW: Duration = Duration::from_millis(40);

/// A look at a lane from its start that is no slower needs no mark.
const QUICK: Duration = Duration::from_millis(10);

/// Looks from the start of lanes may take one part in so many of the time.
const SHARE: u32 = 20;

/// A lane is looked at from its start this often at most and at least.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(60);

/// Lanes that are remembered.
const LANES: usize = 10_000;

/// What is known of one lane.
#[derive(Debug)]
struct Mark {
    front: Front,
    /// When it was last looked at from its start.
    looked_at: Moment,
}

/// The fronts of lanes, as one worker knows them.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Empty while looking from the start is quick.
    lanes: BTreeMap<String, Mark>,
    /// The lane that the claim under way looks at from its start.
    looking: Option<String>,
    /// What such a look took at last, and how many in a row were quick.
    look: Duration,
    quick: usize,
}

impl Marks {
    /// Marks for a claim that walks past so many lanes after the cursor. One lane at a time is left out, to be looked at from its start.
    pub(super) fn choose(&mut self, cursor: &str, lanes: usize) -> Vec<Front> {
        let every = self.look_every();
        let mut marks = Vec::new();
        self.looking = None;
        let after = (Bound::Excluded(cursor), Bound::Unbounded);
        for (name, mark) in self.lanes.range::<str, _>(after).take(lanes + 1) {
            if self.looking.is_none() && mark.looked_at.elapsed() >= every {
                self.looking = Some(name.clone());
            } else {
                marks.push(mark.front.clone());
            }
        }
        marks
    }

    /// Takes in what the claim found.
    pub(super) fn learn(&mut self, claim: &Claim) {
        if self.lanes.is_empty() && claim.took < SLOW {
            return;
        }
        if self.lanes.is_empty() {
            tracing::debug!(
                took_ms = claim.took.as_millis(),
                "looking for deliveries is slow: a transaction may be open for long"
            );
            self.look = claim.took;
        }
        if let Some(name) = self.looking.take() {
            self.look = claim.took;
            self.quick = if claim.took < QUICK { self.quick + 1 } else { 0 };
            if let Some(mark) = self.lanes.get_mut(&name) {
                mark.looked_at = Moment::now();
            }
            if self.quick > self.lanes.len() {
                *self = Self::default();
                return;
            }
        }
        for front in &claim.fronts {
            if let Some(mark) = self.lanes.get_mut(&front.endpoint) {
                mark.front = front.clone();
            } else if self.lanes.len() < LANES {
                let mark = Mark {
                    front: front.clone(),
                    looked_at: Moment::now(),
                };
                self.lanes.insert(front.endpoint.clone(), mark);
            }
        }
    }

    fn look_every(&self) -> Duration {
        let lanes = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        self.look
            .saturating_mul(SHARE)
            .saturating_mul(lanes)
            .clamp(OFTEN, SELDOM)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn claim(took: Duration, lanes: &[&str]) -> Claim {
        let front = |endpoint: &&str| Front {
            endpoint: (*endpoint).to_owned(),
            next_retry: DateTime::UNIX_EPOCH,
            id: 7,
        };
        Claim {
            walk_end: None,
            hops: 0,
            claimed_at: DateTime::UNIX_EPOCH,
            wake: None,
            disabled: Vec::new(),
            rationed: false,
            capped: false,
            contended: false,
            heavy: false,
            changes: false,
            fronts: lanes.iter().map(front).collect(),
            took,
            taken: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn names(marks: &[Front]) -> Vec<&str> {
        marks.iter().map(|mark| mark.endpoint.as_str()).collect()
    }

    fn slow() -> Marks {
        let mut marks = Marks::default();
        marks.learn(&claim(SLOW, &["a", "b", "c", "d"]));
        marks
    }

    #[test]
    fn quick_claims_begin_at_the_start_of_lanes() {
        let mut marks = Marks::default();

        marks.learn(&claim(SLOW - Duration::from_millis(1), &["a"]));

        assert!(marks.choose("", 64).is_empty());
    }

    #[test]
    fn after_a_slow_one_they_begin_at_the_fronts_of_the_lanes_to_come() {
        let mut marks = slow();

        assert_eq!(names(&marks.choose("", 64)), ["a", "b", "c", "d"]);
        assert_eq!(names(&marks.choose("b", 64)), ["c", "d"]);
        assert_eq!(
            names(&marks.choose("", 1)),
            ["a", "b"],
            "one more than lanes"
        );
    }

    #[test]
    fn each_lane_is_looked_at_from_its_start_when_its_time_has_come() {
        let mut marks = slow();
        for name in ["b", "c"] {
            let mark = marks.lanes.get_mut(name).expect("it is known");
            mark.looked_at = Moment::ago(SELDOM);
        }

        assert_eq!(names(&marks.choose("", 64)), ["a", "c", "d"]);
        marks.learn(&claim(SLOW, &["a", "b", "c", "d"]));
        assert_eq!(names(&marks.choose("", 64)), ["a", "b", "d"]);
        marks.learn(&claim(SLOW, &["a", "b", "c", "d"]));
        assert_eq!(names(&marks.choose("", 64)), ["a", "b", "c", "d"]);
    }

    #[test]
    fn the_longer_a_look_takes_the_more_seldom_it_is() {
        let mut marks = slow();
        assert_eq!(
            marks.look_every(),
            SLOW * 80,
            "a twentieth of the time, for four lanes"
        );

        marks.look = Duration::ZERO;
        assert_eq!(marks.look_every(), OFTEN);

        marks.look = Duration::from_secs(10);
        assert_eq!(marks.look_every(), SELDOM);
    }

    #[test]
    fn once_a_look_at_every_lane_was_quick_marks_are_forgotten() {
        let mut marks = slow();

        for _ in 0..5 {
            for mark in marks.lanes.values_mut() {
                mark.looked_at = Moment::ago(SELDOM);
            }
            marks.choose("", 64);
            marks.learn(&claim(Duration::ZERO, &["a", "b", "c", "d"]));
        }

        assert!(marks.choose("", 64).is_empty());
    }
}
