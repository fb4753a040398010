//! The outcomes of all groups so far, as checkpoints store them.
//!
//! A line of a checkpoint may have been damaged or edited. Whatever is read here balances, and is no larger than what a
//! run can count, so that later counting neither overflows nor takes forever.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::collections::BTreeSet;

/// Most steps, groups or positions of a run: above 2^53, JSON readers that use floats lose precision.
const MOST: u64 = 1 << 53;

/// Reads a number of steps, groups or positions.
///
/// # Errors
/// It is larger than any run counts.
pub fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let count = u64::deserialize(from)?;
    if count > MOST {
        return Err(D::Error::custom(format!("{count} is more than any run counts, at most {MOST}")));
    }
    Ok(count)
}

/// Counts that always balance: `opened = trained + filtered + dropped + failed + in flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredCounts")]
pub struct GroupCounts {
    /// Groups opened so far, settled or not.
    pub opened: u64,
    /// Groups that were part of an optimizer step.
    pub trained: u64,
    /// Groups that left without a learning signal.
    pub filtered: u64,
    /// Groups dropped as stale, or for which no service answered. Their items are sampled again.
    pub dropped: u64,
    /// Groups that ended with an error.
    pub failed: u64,
    /// Groups that failed since the last one that was ready for training. Groups of a batch that was refused were
    /// ready and are not among them: refused batches have their own limit.
    #[serde(skip)]
    pub failed_in_a_row: u64,
    /// Groups, of those that failed in a row, in which every reward failed in the environment's own code, and during which
    /// no group became ready.
    #[serde(skip)]
    pub raised_in_a_row: u64,
    /// Groups without signal since the last one that was trained.
    #[serde(skip)]
    pub filtered_in_a_row: u64,
}

/// [`GroupCounts`] as they are stored, not yet balanced.
#[derive(Deserialize)]
struct StoredCounts {
    #[serde(deserialize_with = "count")]
    opened: u64,
    #[serde(deserialize_with = "count")]
    trained: u64,
    #[serde(deserialize_with = "count")]
    filtered: u64,
    #[serde(deserialize_with = "count")]
    dropped: u64,
    #[serde(deserialize_with = "count")]
    failed: u64,
}

impl TryFrom<StoredCounts> for GroupCounts {
    type Error = String;

    fn try_from(stored: StoredCounts) -> Result<Self, String> {
        let StoredCounts { opened, trained, filtered, dropped, failed } = stored;
        let counts = Self { opened, trained, filtered, dropped, failed, ..Self::default() };
        let left = counts.settled();
        if left > opened {
            return Err(format!("{opened} groups were opened, and {left} have left"));
        }
        Ok(counts)
    }
}

impl GroupCounts {
    /// Groups with an outcome.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.trained + self.filtered + self.dropped + self.failed
    }

    /// Groups opened and not yet settled.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.opened - self.settled()
    }

    /// These counts added to those of the earlier part of the run. Its groups in flight have been opened again.
    #[must_use]
    pub fn after(&self, before: &Self) -> Self {
        Self {
            opened: before.settled() + self.opened,
            trained: before.trained + self.trained,
            filtered: before.filtered + self.filtered,
            dropped: before.dropped + self.dropped,
            failed: before.failed + self.failed,
            failed_in_a_row: self.failed_in_a_row,
            raised_in_a_row: self.raised_in_a_row,
            filtered_in_a_row: self.filtered_in_a_row,
        }
    }
}

/// Which positions of the schedule are settled: all below `below`, and those of `also`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledPositions {
    #[serde(deserialize_with = "count")]
    below: u64,
    #[serde(deserialize_with = "positions")]
    also: BTreeSet<u64>,
}

fn positions<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<u64>, D::Error> {
    #[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    struct Position(#[serde(deserialize_with = "count")] u64);
    Ok(BTreeSet::deserialize(from)?.into_iter().map(|Position(position)| position).collect())
}

impl SettledPositions {
    /// Whether a position is settled.
    #[must_use]
    pub fn contains(&self, position: u64) -> bool {
        position < self.below || self.also.contains(&position)
    }

    /// How many positions are settled.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.below + self.also.range(self.below..).count() as u64
    }

    /// The positions that are not settled, in order, without end.
    pub fn rest(self) -> impl Iterator<Item = u64> {
        (self.below..).filter(move |position| !self.also.contains(position))
    }

    pub(crate) fn insert(&mut self, position: u64) {
        self.also.insert(position);
        while self.also.remove(&self.below) {
            self.below += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(positions: &[u64]) -> SettledPositions {
        let mut settled = SettledPositions::default();
        positions.iter().for_each(|position| settled.insert(*position));
        settled
    }

    #[test]
    fn settled_positions_are_remembered_across_gaps() {
        let settled = settled(&[1, 3, 0]);
        assert_eq!((settled.below, settled.also.len(), settled.count()), (2, 1, 3));
        assert_eq!((0..5).map(|p| settled.contains(p)).collect::<Vec<_>>(), [true, true, false, true, false]);
        assert_eq!(settled.rest().take(3).collect::<Vec<_>>(), [2, 4, 5]);
    }

    #[test]
    fn a_run_with_any_number_of_settled_positions_resumes_at_once() {
        let far = SettledPositions { below: MOST, also: [MOST].into() };
        assert_eq!(far.rest().next(), Some(MOST + 1), "it would take years to count so far");
    }

    #[test]
    fn what_no_run_counts_is_not_read() {
        let settled = |text: &str| serde_json::from_str::<SettledPositions>(text).map_err(|e| e.to_string());
        assert_eq!(settled(r#"{"below":2,"also":[3]}"#), Ok(self::settled(&[0, 1, 3])));
        for text in
            [r#"{"below":18446744073709551615,"also":[]}"#, r#"{"below":0,"also":[1,9007199254740993]}"#]
        {
            let error = settled(text).unwrap_err();
            assert!(error.contains("more than any run counts"), "{error}");
        }
        let counts = |opened: u64, failed: u64| {
            let text =
                format!(r#"{{"opened":{opened},"trained":1,"filtered":2,"dropped":3,"failed":{failed}}}"#);
            serde_json::from_str::<GroupCounts>(&text).map_err(|e| e.to_string())
        };
        assert_eq!(counts(10, 4).unwrap().in_flight(), 0);
        let error = counts(9, 4).unwrap_err();
        assert!(error.contains("9 groups were opened, and 10 have left"), "{error}");
        assert!(counts(u64::MAX, u64::MAX).unwrap_err().contains("more than any run counts"));
    }
}
