//! The sums, generated on demand: a question is a function of level, seed and index.
//!
//! Operations take turns. No example is ever asked. The two small levels hold each of their questions once; in the full
//! level three of every twenty questions of an operation have large operands.

use crate::parse::Integer;
use minds_core::random::seeded_rng;
use rand::RngExt;
use serde::Deserialize;
use std::fmt;
use std::num::NonZeroU64;

/// How large the operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum SumLevel {
    /// 0 to 20, with + - *.
    #[serde(rename = "to_20")]
    To20,
    /// 0 to 9, sums only.
    #[serde(rename = "one_digit")]
    OneDigit,
    /// 0 to 999, and 15% from 10^7 to 10^12, with + - *.
    #[serde(rename = "full")]
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SumOperation {
    Plus,
    Minus,
    Times,
}

impl SumOperation {
    fn sign(self) -> char {
        match self {
            Self::Plus => '+',
            Self::Minus => '-',
            Self::Times => '*',
        }
    }
}

use SumOperation::{Minus, Plus, Times};

/// One arithmetic question with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SumQuestion {
    left: u64,
    operation: SumOperation,
    right: u64,
}

/// Questions shown to the policy with their results.
pub(super) const EXAMPLES: [SumQuestion; 4] = [
    SumQuestion { left: 6, operation: Plus, right: 5 },
    SumQuestion { left: 17, operation: Times, right: 13 },
    SumQuestion { left: 4, operation: Minus, right: 9 },
    SumQuestion { left: 12, operation: Plus, right: 19 },
];

impl SumQuestion {
    pub(super) fn sign(self) -> char {
        self.operation.sign()
    }

    /// Exact: operands of at most 10^12 make at most 10^24, far below what 128 bits hold.
    pub(super) fn result(self) -> Integer {
        let left = i128::from(self.left);
        let right = i128::from(self.right);
        Integer::from(match self.operation {
            Plus => left + right,
            Minus => left - right,
            Times => left * right,
        })
    }
}

impl fmt::Display for SumQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "What is {} {} {}?", self.left, self.sign(), self.right)
    }
}

/// All questions of a level.
pub(super) struct SumQuestions {
    source: QuestionSource,
    operations: &'static [SumOperation],
    len: NonZeroU64,
}

enum QuestionSource {
    /// All questions of the level, operations in rotation.
    All(Vec<SumQuestion>),
    Drawn {
        seed: u64,
    },
}

impl SumQuestions {
    pub(super) fn new(level: SumLevel, items: NonZeroU64, seed: u64) -> Self {
        let (operations, largest): (&[SumOperation], _) = match level {
            SumLevel::To20 => (&[Plus, Minus, Times], 20),
            SumLevel::OneDigit => (&[Plus], 9),
            SumLevel::Full => {
                let operations = &[Plus, Minus, Times];
                return Self { source: QuestionSource::Drawn { seed }, operations, len: items };
            }
        };
        let all = all(operations, largest);
        let len = NonZeroU64::new(all.len() as u64).expect("a hundred pairs are more than four examples");
        Self { source: QuestionSource::All(all), operations, len }
    }

    pub(super) fn len(&self) -> NonZeroU64 {
        self.len
    }

    /// Question `i` asks for operation `i % operations`.
    pub(super) fn operations(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.operations.len() as u64 - 1)
    }

    /// The question at `index`, which is below [`SumQuestions::len`].
    pub(super) fn get(&self, index: u64) -> SumQuestion {
        match &self.source {
            QuestionSource::All(all) => all[index as usize],
            QuestionSource::Drawn { seed } => {
                let count = self.operations.len() as u64;
                let operation = self.operations[(index % count) as usize];
                let is_large = index / count % 20 < 3;
                let range = if is_large { 10_000_000..=1_000_000_000_000 } else { 0..=999 };
                // A draw that hits an example is repeated, so that no example is ever asked.
                (0..)
                    .map(|attempt| {
                        let mut draws = seeded_rng([*seed, index, attempt, 0]);
                        let (left, right) =
                            (draws.random_range(range.clone()), draws.random_range(range.clone()));
                        SumQuestion { left, operation, right }
                    })
                    .find(|question| !EXAMPLES.contains(question))
                    .expect("four examples are not all there is to draw")
            }
        }
    }
}

/// Every question with operands of at most `largest`, without the examples, operations in rotation. Where an operation
/// has more examples than another, the others lose their last questions, so that rotation stays exact.
fn all(operations: &[SumOperation], largest: u64) -> Vec<SumQuestion> {
    let lists: Vec<Vec<SumQuestion>> = operations
        .iter()
        .map(|operation| {
            let pairs = (0..=largest).flat_map(|left| (0..=largest).map(move |right| (left, right)));
            pairs
                .map(|(left, right)| SumQuestion { left, operation: *operation, right })
                .filter(|question| !EXAMPLES.contains(question))
                .collect()
        })
        .collect();
    let shortest = lists.iter().map(Vec::len).min().unwrap_or_default();
    (0..shortest).flat_map(|i| lists.iter().map(move |list| list[i])).collect()
}
