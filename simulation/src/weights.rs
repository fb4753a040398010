//! The weights of a sampler: those after a fixed number of optimizer steps, or those that were published last.

use minds_core::ids::PolicyVersion;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Weights that one publication put in the place of others.
#[derive(Clone, Copy)]
pub struct Publication {
    at: Instant,
    /// The name that they were published under.
    pub version: PolicyVersion,
    /// Number of optimizer steps behind them.
    pub steps: u64,
}

/// All publications of an adapter, the oldest first.
#[derive(Default)]
pub struct Publications(Mutex<Vec<Publication>>);

impl Publications {
    pub fn publish(&self, version: PolicyVersion, steps: u64) {
        self.lock().push(Publication { at: Instant::now(), version, steps });
    }

    /// The weights that were the newest at a time after the first publication.
    fn at(&self, time: Instant) -> Publication {
        let published = self.lock();
        let later = published.partition_point(|publication| publication.at <= time);
        published[later.max(1) - 1]
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Publication>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
pub enum SimulatedWeights {
    /// After this number of optimizer steps.
    Fixed(u64),
    /// The newest of an adapter, which has published some.
    InFlight(Arc<Publications>),
}

impl SimulatedWeights {
    /// The number of optimizer steps behind the weights at a time, and their name where others can follow.
    pub fn at(&self, time: Instant) -> (u64, Option<PolicyVersion>) {
        match self {
            Self::Fixed(steps) => (*steps, None),
            Self::InFlight(publications) => {
                let Publication { version, steps, .. } = publications.at(time);
                (steps, Some(version))
            }
        }
    }

    /// The number of optimizer steps behind the weights of this moment.
    pub fn steps(&self) -> u64 {
        self.at(Instant::now()).0
    }
}
