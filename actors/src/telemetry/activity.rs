//! Busy times: the shares of time that show whether stages overlap.
//!
//! Time is split at every change of the busy stages; each interval counts once for every stage busy in it.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// Kinds of work whose overlap is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityKind {
    /// A sample request is under way.
    Sampling,
    /// A reward is being computed.
    Scoring,
    /// A forward_backward or optim_step is under way.
    Training,
    /// A gradient step is being measured.
    Shadow,
    /// Weights are being made ready to sample from.
    Exporting,
}

/// Seconds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyTimes {
    /// Wall time since the start.
    pub wall: f64,
    /// At least one sample request under way.
    pub sampling: f64,
    /// At least one reward being computed.
    pub scoring: f64,
    /// Time with the trainer busy.
    pub training: f64,
    /// The trainer busy while sampling or scoring was under way.
    pub overlap: f64,
    /// At least one gradient step being measured.
    pub shadow: f64,
    /// Any of these: the service has work.
    pub any: f64,
    /// The trainer idle, by what was under way meanwhile.
    pub idle: TrainerIdleTime,
}

/// Seconds in which the trainer was idle, by what it was waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainerIdleTime {
    /// Samples under way, and no rewards.
    pub sampling: f64,
    /// Rewards under way, and no samples.
    pub scoring: f64,
    /// Samples and rewards under way.
    pub both: f64,
    /// Neither, but new weights were being made ready to sample from.
    pub exporting: f64,
    /// No other work under way.
    pub nothing: f64,
}

/// The stages busy at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyStages {
    /// At least one sample request is under way.
    pub sampling: bool,
    /// At least one reward is being computed.
    pub scoring: bool,
    /// The trainer is busy.
    pub training: bool,
    /// At least one gradient step is being measured.
    pub shadow: bool,
    /// Weights are being made ready to sample from.
    pub exporting: bool,
}

impl BusyStages {
    /// Whether anything is under way that can lead to the next optimizer step by itself. A reward that waits for that
    /// step cannot.
    pub(crate) fn lead_to_a_step(self) -> bool {
        self.sampling || self.training || self.exporting
    }
}

/// A share of a whole; both are sums of the same intervals, rounded independently.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

impl BusyTimes {
    /// Share of the trainer's busy time in which sampling or scoring was under way.
    #[must_use]
    pub fn overlap_share(&self) -> f64 {
        share(self.overlap, self.training)
    }

    /// Share of the service's busy time in which gradient steps were measured.
    #[must_use]
    pub fn shadow_share(&self) -> f64 {
        share(self.shadow, self.any)
    }

    /// The time since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            wall: self.wall - earlier.wall,
            sampling: self.sampling - earlier.sampling,
            scoring: self.scoring - earlier.scoring,
            training: self.training - earlier.training,
            overlap: self.overlap - earlier.overlap,
            shadow: self.shadow - earlier.shadow,
            any: self.any - earlier.any,
            idle: TrainerIdleTime {
                sampling: self.idle.sampling - earlier.idle.sampling,
                scoring: self.idle.scoring - earlier.idle.scoring,
                both: self.idle.both - earlier.idle.both,
                exporting: self.idle.exporting - earlier.idle.exporting,
                nothing: self.idle.nothing - earlier.idle.nothing,
            },
        }
    }
}

/// Records which stages are busy. Cheap to clone.
#[derive(Clone)]
pub struct Activity {
    state: Arc<Mutex<ActivityState>>,
}

struct ActivityState {
    since: Instant,
    busy: [u32; 5],
    shares: BusyTimes,
}

impl ActivityState {
    fn now(&self) -> BusyStages {
        let [sampling, scoring, training, shadow, exporting] = self.busy.map(|n| n > 0);
        BusyStages { sampling, scoring, training, shadow, exporting }
    }
}

impl Default for Activity {
    fn default() -> Self {
        let state = ActivityState { since: Instant::now(), busy: [0; 5], shares: BusyTimes::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

impl Activity {
    /// Marks the start of a piece of work; its end is the guard's drop.
    pub fn enter(&self, work: ActivityKind) -> BusyGuard {
        self.advance(|busy| busy[work as usize] += 1);
        BusyGuard { activity: self.clone(), work }
    }

    /// The busy times until now.
    #[must_use]
    pub fn shares(&self) -> BusyTimes {
        self.advance(|_| ())
    }

    /// The stages busy now.
    #[must_use]
    pub fn now(&self) -> BusyStages {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now()
    }

    fn advance(&self, change: impl FnOnce(&mut [u32; 5])) -> BusyTimes {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let seconds = (now - state.since).as_secs_f64();
        state.since = now;
        let BusyStages { sampling, scoring, training, shadow, exporting } = state.now();
        let add = |share: &mut f64, on: bool| *share += if on { seconds } else { 0.0 };
        let shares = &mut state.shares;
        add(&mut shares.wall, true);
        add(&mut shares.sampling, sampling);
        add(&mut shares.scoring, scoring);
        add(&mut shares.training, training);
        add(&mut shares.overlap, training && (sampling || scoring));
        add(&mut shares.shadow, shadow);
        add(&mut shares.any, sampling || scoring || training || shadow);
        let idle = match (sampling, scoring) {
            (true, false) => &mut shares.idle.sampling,
            (false, true) => &mut shares.idle.scoring,
            (true, true) => &mut shares.idle.both,
            (false, false) if exporting => &mut shares.idle.exporting,
            (false, false) => &mut shares.idle.nothing,
        };
        add(idle, !training);
        change(&mut state.busy);
        state.shares
    }
}

/// A piece of work under way.
#[must_use = "the work ends when this is dropped"]
pub struct BusyGuard {
    activity: Activity,
    work: ActivityKind,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.activity.advance(|busy| busy[self.work as usize] -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn stretches_count_once_for_every_stage_busy_in_them() {
        let activity = Activity::default();
        let pass = |seconds| tokio::time::advance(Duration::from_secs(seconds));
        pass(1).await;
        let sampling = activity.enter(ActivityKind::Sampling);
        pass(2).await;
        let second = activity.enter(ActivityKind::Sampling);
        let training = activity.enter(ActivityKind::Training);
        pass(3).await;
        drop((sampling, second));
        pass(4).await;
        drop(training);
        let shadow = activity.enter(ActivityKind::Shadow);
        pass(1).await;
        drop(shadow);
        let export = activity.enter(ActivityKind::Exporting);
        pass(2).await;
        assert_eq!(activity.now(), BusyStages { exporting: true, ..BusyStages::default() });
        drop(export);
        let shares = activity.shares();
        let expected = BusyTimes {
            wall: 13.0,
            sampling: 5.0,
            scoring: 0.0,
            training: 7.0,
            overlap: 3.0,
            shadow: 1.0,
            any: 10.0,
            // The first second and the last but the export; two of sampling before the training began.
            idle: TrainerIdleTime {
                sampling: 2.0,
                exporting: 2.0,
                nothing: 2.0,
                ..TrainerIdleTime::default()
            },
        };
        assert_eq!(shares, expected);
        assert!((shares.overlap_share() - 3.0 / 7.0).abs() < 1e-12);
        assert!((shares.shadow_share() - 0.1).abs() < 1e-12);
    }
}
