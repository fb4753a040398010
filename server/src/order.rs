//! The order of one model's requests.
//!
//! Clients number the requests of a model from 1 and send several at once, so they arrive in any order.
//! [`RequestOrder`] returns them in the order of their numbers. A number that never arrives can time out; the requests
//! that waited for it fail too, because they were meant to run after it. A request without a number runs after every
//! request that arrived before it. The number 0 comes before 1, and no request waits for it.

use std::collections::{BTreeMap, VecDeque};

/// Holds the requests of one model until their turn.
#[derive(Debug)]
pub(crate) struct RequestOrder<T> {
    next: u64,
    parked: BTreeMap<u64, T>,
    /// Each with the largest number that had arrived before it.
    unnumbered: VecDeque<(u64, T)>,
}

impl<T> RequestOrder<T> {
    /// An empty order that waits for number 1.
    pub(crate) fn new() -> Self {
        Self { next: 1, parked: BTreeMap::new(), unnumbered: VecDeque::new() }
    }

    /// Adds a request. Returns it as an error if its number timed out.
    pub(crate) fn offer(&mut self, number: Option<u64>, item: T) -> Result<(), T> {
        match number {
            None => {
                let last = self.parked.last_key_value().map_or(self.next - 1, |(last, _)| *last);
                self.unnumbered.push_back((last, item));
            }
            Some(0) if self.next == 1 => {
                self.parked.insert(0, item);
            }
            Some(number) if number < self.next => return Err(item),
            Some(number) => {
                self.parked.insert(number, item);
            }
        }
        Ok(())
    }

    /// Removes the next request in order; `None` if none is ready.
    pub(crate) fn next(&mut self) -> Option<T> {
        if let Some(item) = self.parked.remove(&0) {
            return Some(item);
        }
        if self.unnumbered.front().is_some_and(|(before, _)| *before < self.next) {
            return self.unnumbered.pop_front().map(|(_, item)| item);
        }
        let item = self.parked.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// Removes all requests that have not run.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let parked = std::mem::take(&mut self.parked).into_values();
        parked.chain(std::mem::take(&mut self.unnumbered).into_iter().map(|(_, item)| item)).collect()
    }

    /// Whether requests wait for a number that has not arrived.
    pub(crate) fn has_gap(&self) -> bool {
        self.parked.first_key_value().is_some_and(|(first, _)| *first > self.next)
    }

    /// Gives up the missing number; returns it with all numbered requests that waited for it.
    pub(crate) fn give_up(&mut self) -> (u64, Vec<T>) {
        let missing = self.next;
        let parked = std::mem::take(&mut self.parked);
        if let Some((last, _)) = parked.last_key_value() {
            self.next = last + 1;
        }
        (missing, parked.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut RequestOrder<u64>) -> Vec<u64> {
        std::iter::from_fn(|| order.next()).collect()
    }

    #[test]
    fn every_order_of_arrival_leaves_in_the_order_of_the_numbers() {
        for arrival in [[1, 2, 3], [2, 3, 1], [3, 2, 1], [1, 3, 2]] {
            let mut order = RequestOrder::new();
            let mut left = Vec::new();
            for number in arrival {
                order.offer(Some(number), number).unwrap();
                left.extend(drain(&mut order));
            }
            assert_eq!(left, [1, 2, 3], "{arrival:?}");
            assert!(!order.has_gap());
        }
    }

    #[test]
    fn a_request_numbered_0_runs_before_number_1_and_not_after_it() {
        let mut order = RequestOrder::new();
        for number in [2, 0] {
            order.offer(Some(number), number).unwrap();
        }
        order.offer(None, 100).unwrap();
        assert_eq!(drain(&mut order), [0]);
        order.offer(Some(1), 1).unwrap();
        assert_eq!(drain(&mut order), [1, 2, 100]);
        assert_eq!(order.offer(Some(0), 0), Err(0), "too late");
    }

    #[test]
    fn requests_waiting_for_a_lost_number_fail_with_it() {
        let mut order = RequestOrder::new();
        for number in [1, 3, 4] {
            order.offer(Some(number), number).unwrap();
        }
        assert_eq!(drain(&mut order), [1]);
        assert!(order.has_gap());
        assert_eq!(order.give_up(), (2, vec![3, 4]));
        assert!(!order.has_gap());
        assert_eq!(order.offer(Some(2), 2), Err(2), "too late");
        order.offer(Some(5), 5).unwrap();
        assert_eq!(drain(&mut order), [5]);
    }

    #[test]
    fn requests_without_a_number_run_after_all_earlier_ones() {
        let mut order = RequestOrder::new();
        order.offer(None, 100).unwrap();
        assert_eq!(drain(&mut order), [100], "nothing came before it");
        order.offer(Some(2), 2).unwrap();
        order.offer(None, 101).unwrap();
        order.offer(Some(3), 3).unwrap();
        order.offer(None, 102).unwrap();
        assert_eq!(drain(&mut order), [0; 0]);
        order.offer(Some(1), 1).unwrap();
        assert_eq!(drain(&mut order), [1, 2, 101, 3, 102]);
    }

    #[test]
    fn requests_without_a_number_do_not_wait_for_dropped_ones() {
        let mut order = RequestOrder::new();
        order.offer(Some(2), 2).unwrap();
        order.offer(None, 100).unwrap();
        assert_eq!(order.give_up(), (1, vec![2]));
        assert_eq!(drain(&mut order), [100]);
    }
}
