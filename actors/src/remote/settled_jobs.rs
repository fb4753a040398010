//! How the newest jobs of a run ended, so that results that come again can be told from those of an earlier process.

use std::collections::{HashMap, VecDeque};

/// Jobs that are remembered: more than any result is late.
const REMEMBERED: usize = 1 << 16;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// It had a result.
    Done,
    /// Nobody waited for its result any more.
    Withdrawn,
}

/// The newest jobs that have ended, by id.
#[derive(Default)]
pub(super) struct SettledJobs {
    ends: HashMap<String, Settlement>,
    order: VecDeque<String>,
}

impl SettledJobs {
    /// How this job ended, if it is remembered.
    pub(super) fn get(&self, id: &str) -> Option<Settlement> {
        self.ends.get(id).copied()
    }

    /// Remembers how a job ended; forgets the oldest one if there are too many.
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
