//! The questions: products, subsets of a range, ranges with a bias, and plain ranges, in rotation.
//!
//! A question is a function of seed and index. Every allowed number is from 1 to 100, and no example is a question.

use super::EXAMPLES;
use minds_core::random::seeded_rng;
use rand::{Rng, RngExt};
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

/// Every number that can be allowed.
pub(super) const ALL: RangeInclusive<i64> = 1..=100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionMode {
    /// A product: exactly one number is a valid choice.
    Product,
    /// Primes or even numbers of a range.
    Subset,
    /// A range with a stated preference.
    Biased,
    /// A plain range of numbers.
    Uniform,
}

impl QuestionMode {
    const ALL: [Self; 4] = [Self::Product, Self::Subset, Self::Biased, Self::Uniform];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Product => "product",
            Self::Subset => "subset",
            Self::Biased => "biased",
            Self::Uniform => "uniform",
        }
    }
}

pub(super) struct NumberQuestion {
    pub(super) mode: QuestionMode,
    pub(super) text: String,
    /// Ascending, at least one.
    pub(super) allowed: Vec<i64>,
    /// The range that the question speaks of.
    pub(super) range: RangeInclusive<i64>,
}

pub(super) struct NumberQuestions {
    pub(super) seed: u64,
    pub(super) products: bool,
}

impl NumberQuestions {
    /// Question `i` is of mode `i % modes`.
    pub(super) fn modes(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(if self.products { 3 } else { 2 })
    }

    pub(super) fn get(&self, index: u64) -> NumberQuestion {
        let modes = if self.products { &QuestionMode::ALL[..] } else { &QuestionMode::ALL[1..] };
        let mode = modes[(index % modes.len() as u64) as usize];
        (0..)
            .map(|attempt| question(mode, &mut seeded_rng([self.seed, index, attempt, 0])))
            .find(|question| EXAMPLES.iter().all(|(example, _)| *example != question.text))
            .expect("three examples are not all there is to draw")
    }
}

fn question(mode: QuestionMode, draws: &mut impl Rng) -> NumberQuestion {
    let (text, allowed, range) = match mode {
        QuestionMode::Product => {
            let left = draws.random_range(2..=12);
            // 12 times 9 would lie outside the numbers that can be allowed.
            let right = draws.random_range(2..=9.min(100 / left));
            let product = left * right;
            (format!("Give the value of {left} times {right}."), vec![product], product..=product)
        }
        QuestionMode::Subset => subset(draws),
        QuestionMode::Biased => {
            let range = range(12..=35, draws);
            let step = if draws.random() { 5 } else { 10 };
            let low = range.start();
            let high = range.end();
            let text = format!("Choose a number from {low} to {high}, if you can a multiple of {step}.");
            (text, range.clone().collect(), range)
        }
        QuestionMode::Uniform => {
            let range = range(20..=50, draws);
            let text = format!("Choose any number from {} to {}.", range.start(), range.end());
            (text, range.clone().collect(), range)
        }
    };
    NumberQuestion { mode, text, allowed, range }
}

fn subset(draws: &mut impl Rng) -> (String, Vec<i64>, RangeInclusive<i64>) {
    let range = range(6..=20, draws);
    let is_prime = |n: &i64| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
    let primes: Vec<i64> = range.clone().filter(is_prime).collect();
    let low = range.start();
    let high = range.end();
    if primes.len() >= 2 && draws.random() {
        return (format!("Choose a prime number from {low} to {high}."), primes, range);
    }
    let text = format!("Choose an even number from {low} to {high}.");
    (text, range.clone().filter(|n| n % 2 == 0).collect(), range)
}

/// A random range whose size is drawn from `sizes`.
fn range(sizes: RangeInclusive<i64>, draws: &mut impl Rng) -> RangeInclusive<i64> {
    let size = draws.random_range(sizes);
    let low = draws.random_range(*ALL.start()..=*ALL.end() - size + 1);
    low..=low + size - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_question_states_its_allowed_numbers() {
        let questions = NumberQuestions { seed: 5, products: true };
        let mut texts = BTreeSet::new();
        for index in 0..2400 {
            let NumberQuestion { mode, text, allowed, range } = questions.get(index);
            assert_eq!(mode, QuestionMode::ALL[index as usize % 4]);
            assert!(
                allowed.is_sorted() && allowed.iter().all(|n| ALL.contains(n) && range.contains(n)),
                "{text}"
            );
            let numbers: Vec<i64> =
                text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
            match mode {
                QuestionMode::Product => assert_eq!(allowed, [numbers[0] * numbers[1]], "{text}"),
                _ => assert_eq!(range, numbers[0]..=numbers[1], "{text}"),
            }
            let sizes = match mode {
                QuestionMode::Product => 1..=1,
                QuestionMode::Subset => 2..=10,
                QuestionMode::Biased => 12..=35,
                QuestionMode::Uniform => 20..=50,
            };
            assert!(sizes.contains(&allowed.len()), "{text}");
            texts.insert(text);
        }
        assert!(texts.len() > 1000, "{}", texts.len());
    }

    #[test]
    fn subsets_are_primes_or_even_numbers() {
        let questions = NumberQuestions { seed: 1, products: false };
        let primes =
            [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97];
        let mut both = BTreeSet::new();
        for index in (0..600).step_by(3) {
            let NumberQuestion { text, allowed, range, .. } = questions.get(index);
            let is_prime = text.contains("prime");
            let expected: Vec<i64> =
                range.filter(|n| if is_prime { primes.contains(n) } else { n % 2 == 0 }).collect();
            assert_eq!(allowed, expected, "{text}");
            both.insert(is_prime);
        }
        assert_eq!(both.len(), 2);
    }
}
