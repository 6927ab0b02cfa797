//! Where the next walk past the lanes starts, and whether a whole lap has been empty.
//!
//! A claim walks past a bounded number of lanes. The cursor carries on where the walk ended, wraps at the end of the lap, and the
//! worker may sleep only when one lap from its very start to its end took nothing: an endless or a forgotten lap is the classic
//! fault of such a cursor. Pure.

use std::time::Duration;

/// Lanes that one claim walks past at most.
const LANES: i32 = 64;

/// Deliveries that a claim may take of one lane before the next claim goes on to others: each lane that is looked at costs something.
const SHARE: usize = 16;

/// The cursor of one worker.
#[derive(Debug)]
pub(super) struct Lap {
    cursor: String,
    /// Half as many after a claim that was filled, twice as many after one that was not.
    lanes: i32,
    /// Nothing was taken since the start of this lap. A lap that began in the middle does not count.
    empty_so_far: bool,
}

/// What one claim says about the lap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<'a> {
    /// Last endpoint walked past.
    pub(super) end: Option<&'a str>,
    /// Lanes walked past, and at most so many.
    pub(super) hops: i32,
    /// The limit of lanes.
    pub(super) lanes: i32,
    /// Deliveries taken, and of which endpoint the last one in the order of the walk was.
    pub(super) taken: usize,
    /// `None` when nothing was taken.
    pub(super) last_served: Option<&'a str>,
    /// Deliveries asked for.
    pub(super) wanted: usize,
    /// The claim stopped early: there was no room for the payloads that came next.
    pub(super) heavy: bool,
}

/// Why due deliveries may have been left where they are, over all walks of a lap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Until the next known due time.
    pub(super) wake: Option<Duration>,
    /// For rate tokens.
    pub(super) rationed: bool,
    /// For tries in flight to end.
    pub(super) capped: bool,
    /// For another claim to be done with their lane.
    pub(super) contended: bool,
    /// For changes of watched tables to become deliveries.
    pub(super) changes: bool,
}

impl Waits {
    /// Whether something due would have been taken a little later.
    #[must_use]
    pub(super) fn any(self) -> bool {
        self.rationed || self.capped || self.contended
    }

    /// With what one more walk left behind.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            wake: self.wake.into_iter().chain(other.wake).min(),
            rationed: self.rationed || other.rationed,
            capped: self.capped || other.capped,
            contended: self.contended || other.contended,
            changes: self.changes || other.changes,
        }
    }
}

/// What to do after a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Claim again as soon as there is room: there may be more.
    GoOn,
    /// A whole lap took nothing: sleep.
    Rest,
}

impl Default for Lap {
    fn default() -> Self {
        Self {
            cursor: String::new(),
            lanes: LANES,
            empty_so_far: false,
        }
    }
}

impl Lap {
    /// How many lanes the next claim should walk past, when it may take so many deliveries.
    #[must_use]
    pub(super) fn lanes(&self, wanted: usize) -> i32 {
        let least = i32::try_from(wanted.div_ceil(SHARE)).unwrap_or(LANES);
        self.lanes.clamp(least.min(LANES), LANES)
    }

    /// Where the next walk starts; empty at the start of a lap.
    #[must_use]
    pub(super) fn cursor(&self) -> &str {
        &self.cursor
    }

    /// Moves the cursor after a claim.
    pub(super) fn advance(&mut self, walk: &Walk<'_>) -> Step {
        if self.cursor.is_empty() {
            self.empty_so_far = true;
        }
        if walk.taken > 0 {
            self.empty_so_far = false;
        }
        let full = walk.taken >= walk.wanted || (walk.heavy && walk.taken > 0);
        self.lanes = if full {
            walk.lanes / 2
        } else {
            walk.lanes.saturating_mul(2)
        };
        let over = walk.hops < walk.lanes;
        let served_to_the_end = walk.last_served == walk.end;
        if full && !(over && served_to_the_end) {
            self.cursor = walk.last_served.unwrap_or_default().to_owned();
            return Step::GoOn;
        }
        if !over {
            self.cursor = walk.end.unwrap_or_default().to_owned();
            return Step::GoOn;
        }
        let rest = self.empty_so_far;
        self.cursor.clear();
        if rest { Step::Rest } else { Step::GoOn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes with so many due deliveries each, and a claim over them as the database would answer it.
    fn claim(
        lanes: &mut [(&'static str, usize)],
        cursor: &str,
        limit: usize,
        wanted: usize,
    ) -> (Option<&'static str>, usize, usize, Option<&'static str>) {
        let passed: Vec<usize> = (0..lanes.len())
            .filter(|&n| lanes[n].0 > cursor)
            .take(limit)
            .collect();
        let live = passed.iter().filter(|&&n| lanes[n].1 > 0).count().max(1);
        let quota = wanted.div_ceil(live);
        let (mut taken, mut last) = (0, None);
        for &n in &passed {
            let share = lanes[n].1.min(quota).min(wanted - taken);
            if share > 0 {
                lanes[n].1 -= share;
                taken += share;
                last = Some(lanes[n].0);
            }
        }
        (
            passed.last().map(|&n| lanes[n].0),
            passed.len(),
            taken,
            last,
        )
    }

    fn drain(mut lanes: Vec<(&'static str, usize)>, limit: usize, wanted: usize) -> (usize, usize) {
        let (mut lap, mut claims, mut total) = (Lap::default(), 0, 0);
        loop {
            let (end, hops, taken, last_served) = claim(&mut lanes, lap.cursor(), limit, wanted);
            claims += 1;
            total += taken;
            assert!(claims < 10_000, "an endless lap");
            let step = lap.advance(&Walk {
                end,
                hops: i32::try_from(hops).expect("few"),
                lanes: i32::try_from(limit).expect("few"),
                taken,
                last_served,
                wanted,
                heavy: false,
            });
            if step == Step::Rest {
                return (total, claims);
            }
        }
    }

    #[test]
    fn nothing_to_do_is_known_after_one_claim() {
        assert_eq!(drain(vec![], 4, 10), (0, 1));
        assert_eq!(drain(vec![("a", 0), ("b", 0)], 4, 10), (0, 1));
    }

    #[test]
    fn every_lane_is_emptied_before_the_worker_rests() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        for limit in 1..9 {
            for wanted in 1..9 {
                for big in 0..names.len() {
                    let lanes: Vec<_> = names
                        .iter()
                        .enumerate()
                        .map(|(n, &name)| (name, if n == big { 30 } else { n % 3 }))
                        .collect();
                    let due: usize = lanes.iter().map(|lane| lane.1).sum();
                    assert_eq!(
                        drain(lanes, limit, wanted).0,
                        due,
                        "limit {limit}, wanted {wanted}, big {big}"
                    );
                }
            }
        }
    }

    #[test]
    fn one_busy_lane_is_not_interleaved_with_empty_claims() {
        let (total, claims) = drain(vec![("whale", 1000)], 64, 100);

        assert_eq!(total, 1000);
        assert!(claims <= 12, "{claims} claims for ten full batches");
    }
}
