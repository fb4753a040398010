//! How surprising a lesson makes an answer, and how well an order agrees with that.

use minds_core::ids::Token;
use std::collections::{BTreeMap, BTreeSet};

/// A list of next tokens with their logprobs, best first.
type TopTokens = [(Token, f32)];

/// The least probability that is left to tokens outside a list, so that rounding cannot make it 0.
const LEAST_REST: f64 = 1e-6;

/// The Kullback-Leibler divergence of `posterior` from `prior` in nats, from the most likely tokens of both.
///
/// It is taken over the union of the two lists and one bucket for every other token. A token that stands in one list
/// only is given, on the other side, the smallest probability listed there (it cannot have more), or an equal share of
/// what that list leaves over to it, to its like and to the bucket, if that is less. Equal lists give 0; a logprob
/// that is NaN gives NaN.
#[must_use]
pub fn divergence(posterior: &TopTokens, prior: &TopTokens) -> f64 {
    let union: BTreeSet<Token> = posterior.iter().chain(prior).map(|(token, _)| *token).collect();
    let (post, pre) =
        (TokenDistribution::new(posterior, union.len()), TokenDistribution::new(prior, union.len()));
    let listed: f64 = union.iter().map(|token| term(post.of(*token), pre.of(*token))).sum();
    let sum = listed + term(post.rest, pre.rest);
    // Rounding, and the least rest, can take the sum of nearly equal sides below 0. `max` would hide a NaN.
    if sum < 0.0 { 0.0 } else { sum }
}

fn term(p: f64, q: f64) -> f64 {
    if p == 0.0 { 0.0 } else { p * (p / q).ln() }
}

/// One distribution over the union and the rest.
struct TokenDistribution {
    listed: BTreeMap<Token, f64>,
    unlisted: f64,
    rest: f64,
}

impl TokenDistribution {
    fn new(top: &TopTokens, union: usize) -> Self {
        let listed: BTreeMap<Token, f64> =
            top.iter().map(|(token, lp)| (*token, f64::from(*lp).exp())).collect();
        let left = (1.0 - listed.values().sum::<f64>()).max(LEAST_REST);
        let missing = (union - listed.len()) as f64;
        let smallest = listed.values().copied().fold(1.0, f64::min);
        let unlisted = smallest.min(left / (missing + 1.0));
        Self { listed, unlisted, rest: left - unlisted * missing }
    }

    fn of(&self, token: Token) -> f64 {
        self.listed.get(&token).copied().unwrap_or(self.unlisted)
    }
}

/// Whether an order of these can be right: they are not all equal.
#[must_use]
pub fn is_ordered(surprises: &[f64]) -> bool {
    surprises.windows(2).any(|pair| pair[0] != pair[1])
}

/// Spearman's rank correlation between an order of the probes (from 1, most surprising first) and their surprises.
///
/// Equal surprises share the mean of their ranks. `None` where all surprises are equal, or there is but one: then no
/// order is better than another.
#[must_use]
pub fn spearman(order: &[usize], surprises: &[f64]) -> Option<f64> {
    let predicted: Vec<f64> = (1..=surprises.len())
        .map(|probe| order.iter().position(|named| *named == probe).map(|place| place as f64))
        .collect::<Option<_>>()?;
    correlation(&predicted, &ranks(surprises))
}

/// Rank 0 is the largest; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let larger = values.iter().filter(|other| *other > value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        larger as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Pearson's correlation; both sides have the same mean, being ranks of the same number of things.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = (a.len() as f64 - 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (product(a, a) * product(b, b)).sqrt();
    (scale > 0.0).then(|| (product(a, b) / scale).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn top(probabilities: &[(Token, f64)]) -> Vec<(Token, f32)> {
        probabilities.iter().map(|(token, p)| (*token, p.ln() as f32)).collect()
    }

    #[test]
    fn divergences_by_hand() {
        let ln2 = std::f64::consts::LN_2;
        // Same two tokens and a rest of 1/4 each: 1/2 ln 2 + 1/4 ln 1/2 + 1/4 ln 1.
        let kl = divergence(&top(&[(1, 0.5), (2, 0.25)]), &top(&[(2, 0.5), (1, 0.25)]));
        assert!((kl - 0.25 * ln2).abs() < 1e-6, "{kl}");
        // One token each has not: 1/4 is left, a half of it (1/8) for the token, the other half is the rest:
        // 1/2 ln 2 + 1/4 ln (1/4 : 1/8) + 1/8 ln (1/8 : 1/2) + 1/8 ln 1 with tokens 1, 2 and 3.
        let kl = divergence(&top(&[(1, 0.5), (2, 0.25)]), &top(&[(3, 0.5), (1, 0.25)]));
        assert!((kl - (0.5 + 0.25 - 0.25) * ln2).abs() < 1e-6, "{kl}");
        // The bound is the smallest listed probability where that is less: 0.1 for token 2, the rest keeps 0.4.
        let kl = divergence(&top(&[(1, 0.5), (2, 0.1)]), &top(&[(1, 0.4), (3, 0.1)]));
        let p = [0.5, 0.1, 0.1, 0.3];
        let q = [0.4, 0.1, 0.1, 0.4_f64];
        let by_hand: f64 = p.iter().zip(q).map(|(p, q): (&f64, f64)| p * (p / q).ln()).sum();
        assert!((kl - by_hand).abs() < 1e-6, "{kl} {by_hand}");
    }

    #[test]
    fn an_impossible_token_and_a_full_list_do_not_make_it_infinite() {
        let kl = divergence(&top(&[(1, 1.0)]), &top(&[(2, 1.0)]));
        assert!(kl.is_finite() && kl > 10.0, "{kl}");
        assert!(divergence(&[(1, f32::NAN)], &[(1, -0.5)]).is_nan());
        assert_eq!(divergence(&[(1, f32::NEG_INFINITY), (2, 0.0)], &[(1, -0.5), (2, -1.0)]).signum(), 1.0);
    }

    #[test]
    fn correlations_by_hand() {
        let surprises = [0.1, 3.0, 2.0, 0.5];
        assert_eq!(spearman(&[2, 3, 4, 1], &surprises), Some(1.0));
        assert_eq!(spearman(&[1, 4, 3, 2], &surprises), Some(-1.0));
        // Two neighbours swapped among four: 1 - 6 * 2 / (4 * 15) = 0.8.
        assert!((spearman(&[3, 2, 4, 1], &surprises).expect("an order") - 0.8).abs() < 1e-12);
        // A tie: ranks 0, 1.5, 1.5 against 0, 1, 2 are 1.5 / sqrt(2 * 1.5) = 0.866.
        let tied = spearman(&[1, 2, 3], &[2.0, 1.0, 1.0]).expect("an order");
        assert!((tied - 0.75_f64.sqrt()).abs() < 1e-12, "{tied}");
        assert_eq!(spearman(&[1, 2], &[1.0, 1.0]), None);
        assert!(is_ordered(&[2.0, 1.0, 1.0]) && !is_ordered(&[1.0, 1.0]) && !is_ordered(&[1.0]));
        assert_eq!(spearman(&[1], &[1.0]), None);
    }

    proptest! {
        #[test]
        fn a_divergence_is_finite_and_never_negative(
            a in prop::collection::btree_map(0_u32..30, 0.001..1.0_f64, 1..20),
            b in prop::collection::btree_map(0_u32..30, 0.001..1.0_f64, 1..20),
        ) {
            let list = |weights: &BTreeMap<Token, f64>| {
                let total: f64 = weights.values().sum::<f64>() * 1.1;
                top(&weights.iter().map(|(t, w)| (*t, w / total)).collect::<Vec<_>>())
            };
            let a = list(&a);
            let b = list(&b);
            let kl = divergence(&a, &b);
            prop_assert!(kl.is_finite() && kl >= 0.0);
            prop_assert_eq!(divergence(&a, &a), 0.0);
        }

        #[test]
        fn a_correlation_lies_between_its_bounds(
            order in Just((1..=5).collect::<Vec<usize>>()).prop_shuffle(),
            surprises in prop::collection::vec(0.0..5.0_f64, 5),
        ) {
            let rho = spearman(&order, &surprises);
            prop_assert!(rho.is_none_or(|rho| (-1.0..=1.0).contains(&rho)));
        }
    }
}
