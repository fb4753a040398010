//! The order of one model's requests.
//!
//! Clients number the requests of a model from 1 and send several at once, so they arrive in any order. What leaves
//! here has the order of the numbers. A number that never arrives can be given up; what waited for it then leaves as
//! given up too, because it was meant to run after it.

use std::collections::{BTreeMap, VecDeque};

/// Holds requests until their turn.
#[derive(Debug)]
pub(super) struct Order<T> {
    next: u64,
    parked: BTreeMap<u64, T>,
    unnumbered: VecDeque<T>,
}

impl<T> Order<T> {
    /// Waits for number 1.
    pub(super) fn new() -> Self {
        Self { next: 1, parked: BTreeMap::new(), unnumbered: VecDeque::new() }
    }

    /// Takes a request in. One without a number runs as soon as it can. A number that has passed, because it was
    /// given up, comes back.
    pub(super) fn offer(&mut self, number: Option<u64>, item: T) -> Result<(), T> {
        match number {
            None => self.unnumbered.push_back(item),
            Some(number) if number < self.next => return Err(item),
            Some(number) => {
                self.parked.insert(number, item);
            }
        }
        Ok(())
    }

    /// The next request whose turn it is.
    pub(super) fn next(&mut self) -> Option<T> {
        if let Some(item) = self.unnumbered.pop_front() {
            return Some(item);
        }
        let item = self.parked.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// Whether requests wait for a number that has not arrived.
    pub(super) fn has_gap(&self) -> bool {
        self.parked.first_key_value().is_some_and(|(first, _)| *first > self.next)
    }

    /// Gives the missing number up, with everything that waits behind it.
    pub(super) fn give_up(&mut self) -> (u64, Vec<T>) {
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

    fn drain(order: &mut Order<u64>) -> Vec<u64> {
        std::iter::from_fn(|| order.next()).collect()
    }

    #[test]
    fn every_order_of_arrival_leaves_in_the_order_of_the_numbers() {
        for arrival in [[1, 2, 3], [2, 3, 1], [3, 2, 1], [1, 3, 2]] {
            let mut order = Order::new();
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
    fn what_waited_for_a_lost_number_is_given_up_with_it() {
        let mut order = Order::new();
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
    fn requests_without_a_number_do_not_wait() {
        let mut order = Order::new();
        order.offer(Some(2), 2).unwrap();
        order.offer(None, 100).unwrap();
        order.offer(None, 101).unwrap();
        assert_eq!(drain(&mut order), [100, 101]);
        assert!(order.has_gap());
    }
}
