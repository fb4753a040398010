//! How the most recent jobs of a run ended.
//!
//! The dispatcher uses this to distinguish repeated results from results of an earlier process.

use std::collections::{HashMap, VecDeque};

/// Number of jobs that are remembered; more than can end before a late result arrives.
const REMEMBERED: usize = 1 << 16;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// The caller received the result.
    Done,
    /// The caller canceled the job.
    Withdrawn,
}

/// The most recently ended jobs, by id.
#[derive(Default)]
pub(super) struct SettledJobs {
    ends: HashMap<String, Settlement>,
    order: VecDeque<String>,
}

impl SettledJobs {
    /// How this job ended; `None` if it is not remembered.
    pub(super) fn get(&self, id: &str) -> Option<Settlement> {
        self.ends.get(id).copied()
    }

    /// Remembers how a job ended. Forgets the oldest job above the limit.
    pub(super) fn add(&mut self, id: String, end: Settlement) {
        if self.ends.insert(id.clone(), end).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.ends.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ends_are_remembered_and_no_more() {
        let mut settled = SettledJobs::default();
        for n in 0..=REMEMBERED {
            settled.add(n.to_string(), Settlement::Done);
        }
        settled.add("1".into(), Settlement::Withdrawn);
        assert_eq!(settled.get("0"), None);
        assert_eq!(settled.get("1"), Some(Settlement::Withdrawn));
        assert_eq!(settled.order.len(), REMEMBERED);
    }
}
