//! How a reader spreads its choice over numbers: the probability of each, from as few questions as possible.
//!
//! A number counts together with what follows it, so that `1` does not also get the mass of `12`. The reader's answer
//! is opened as the policy would open it, and the numbers from 1 to 100 make a tree of their tokens: one question for
//! the next tokens at each place where allowed numbers part from others. With a token per digit that is at most eleven
//! questions; with whole numbers as tokens it is one. A token that the list of likely tokens leaves out is asked for by
//! itself, so nothing is estimated. Beyond 100 the tree does not reach: `27` includes `271`.

use super::questions::ALL;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use minds_core::environment::ScoringContext;
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Next tokens asked for at a time; the ten digits and the end of a line are nearly always among them.
const TOP: usize = 20;

/// How a choice is spread over the allowed numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChoiceSpread {
    /// Entropy over the allowed numbers as a share of the largest possible, 0 to 1; 0 where there is one number.
    pub entropy: f64,
    /// Probability that the number is an allowed one.
    pub mass: f64,
}

/// The spread of a choice with these logprobs, one for each allowed number; `None` without any, or if one is NaN or
/// above 0, or if all are impossible.
#[must_use]
pub fn spread(logprobs: &[f64]) -> Option<ChoiceSpread> {
    // Rounding of single precision may leave a certain token a little above 0.
    let largest = logprobs.iter().copied().reduce(f64::max).filter(|largest| largest.is_finite())?;
    if logprobs.iter().any(|lp| lp.is_nan() || *lp > 1e-3) {
        return None;
    }
    // Taken relative to the largest, so that a set of tiny probabilities does not vanish.
    let total: f64 = logprobs.iter().map(|lp| (lp - largest).exp()).sum();
    let entropy: f64 = logprobs
        .iter()
        .map(|lp| (lp - largest).exp() / total)
        .filter(|p| *p > 0.0)
        .map(|p| -p * p.ln())
        .sum();
    let most = (logprobs.len() as f64).ln();
    let entropy = if most > 0.0 { (entropy / most).clamp(0.0, 1.0) } else { 0.0 };
    Some(ChoiceSpread { entropy, mass: (largest.exp() * total).min(1.0) })
}

/// Asks the reader how it would choose, in place of the policy's answer to the item.
pub(super) async fn ask(scene: &ScoringContext<'_>, allowed: &[i64]) -> Result<ChoiceSpread, RewardError> {
    let prompt = scene.renderer.prompt(&scene.item.prompt)?;
    let answers: Vec<Vec<Token>> = ALL.map(|n| scene.renderer.answer(&format!("NUMBER: {n}\n"))).collect();
    let shared = shared_prefix(&answers);
    let mut tree = NumberNode::default();
    for (number, tokens) in ALL.zip(&answers) {
        tree.insert(&tokens[shared..], number);
    }
    let opening = answers.first().map_or(&[][..], |first| &first[..shared]);
    let prefix = [&prompt, opening].concat();
    let logprobs = tree.ask(scene, prefix, 0.0, allowed).await?;
    let logprobs: Vec<f64> = logprobs.into_iter().map(|(_, lp)| lp).collect();
    if logprobs.len() != allowed.len() {
        return Err(RewardError::Environment("two numbers have the same tokens in this vocabulary".into()));
    }
    spread(&logprobs).ok_or_else(|| {
        RewardError::NotFinite(format!("the logprobs of the allowed numbers are {logprobs:?}"))
    })
}

fn shared_prefix(answers: &[Vec<Token>]) -> usize {
    let Some((first, rest)) = answers.split_first() else { return 0 };
    let common = |other: &Vec<Token>| first.iter().zip(other).take_while(|(a, b)| a == b).count();
    rest.iter().map(common).min().unwrap_or(first.len())
}

/// A place in the tree of numbers.
#[derive(Default)]
struct NumberNode {
    children: BTreeMap<Token, NumberNode>,
    /// The numbers that are written through here.
    numbers: Vec<i64>,
}

impl NumberNode {
    fn insert(&mut self, tokens: &[Token], number: i64) {
        self.numbers.push(number);
        if let Some((first, rest)) = tokens.split_first() {
            self.children.entry(*first).or_default().insert(rest, number);
        }
    }

    /// The logprob of each allowed number below this place, which has the logprob `so_far` and stands after `prefix`.
    fn ask<'a>(
        &'a self,
        scene: &'a ScoringContext<'a>,
        prefix: Vec<Token>,
        so_far: f64,
        allowed: &'a [i64],
    ) -> BoxFuture<'a, Result<Vec<(i64, f64)>, RewardError>> {
        async move {
            let leads_to_allowed = |node: &NumberNode| node.numbers.iter().any(|n| allowed.contains(n));
            match &self.numbers[..] {
                // Only one number continues from here, so further tokens do not change its probability.
                [number] => return Ok(vec![(*number, so_far)]),
                _ if !leads_to_allowed(self) => return Ok(Vec::new()),
                _ => {}
            }
            let wanted: Vec<(Token, &NumberNode)> = self
                .children
                .iter()
                .filter(|(_, node)| leads_to_allowed(node))
                .map(|(token, node)| (*token, node))
                .collect();
            let tokens: Vec<Token> = wanted.iter().map(|(token, _)| *token).collect();
            let logprobs = next(scene, &prefix, &tokens).await?;
            let below = wanted.into_iter().zip(logprobs).map(|((token, node), lp)| {
                let prefix = [&prefix[..], &[token]].concat();
                node.ask(scene, prefix, so_far + lp, allowed)
            });
            Ok(try_join_all(below).await?.concat())
        }
        .boxed()
    }
}

/// The logprob of each of these tokens after `prefix`.
async fn next(
    scene: &ScoringContext<'_>,
    prefix: &[Token],
    tokens: &[Token],
) -> Result<Vec<f64>, RewardError> {
    let prefix: Arc<[Token]> = prefix.into();
    let likely = match scene.oracle.next_tokens(prefix.clone(), TOP).await {
        Ok(likely) => likely,
        // A service without such lists is queried for each token.
        Err(RewardError::Refused(_) | RewardError::Unsupported(_)) => Arc::default(),
        Err(other) => return Err(other),
    };
    try_join_all(tokens.iter().map(|token| {
        let listed = likely.iter().find(|(other, _)| other == token).map(|(_, lp)| f64::from(*lp));
        let alone = scene.oracle.logprobs(prefix.clone(), Arc::new([*token]));
        async move {
            match listed {
                Some(lp) => Ok(lp),
                None => alone.await.and_then(|lps| match lps[..] {
                    [lp] => Ok(f64::from(lp)),
                    _ => Err(RewardError::Service(format!("{} logprobs for one token", lps.len()))),
                }),
            }
        }
    }))
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entropy(probabilities: &[f64]) -> f64 {
        let logprobs: Vec<f64> = probabilities.iter().map(|p| p.ln()).collect();
        spread(&logprobs).expect("probabilities").entropy
    }

    #[test]
    fn spreads_by_hand() {
        // A uniform choice is as spread as can be, however little of the mass it has.
        assert!((entropy(&[0.25; 4]) - 1.0).abs() < 1e-12);
        assert!((entropy(&[0.01; 20]) - 1.0).abs() < 1e-12);
        assert!((entropy(&[1e-300; 7]) - 1.0).abs() < 1e-12);
        // 1/2, 1/4, 1/4: 1.5 bits of log2 3.
        assert!((entropy(&[0.5, 0.25, 0.25]) - 1.5 / 3_f64.log2()).abs() < 1e-12);
        assert_eq!(entropy(&[1.0, 0.0, 0.0]), 0.0);
        let spread = spread(&[0.5_f64.ln(), 0.25_f64.ln()]).expect("probabilities");
        assert!((spread.mass - 0.75).abs() < 1e-12);
    }

    #[test]
    fn invalid_logprobs_have_no_spread() {
        for logprobs in [&[][..], &[f64::NAN, -1.0], &[-1.0, f64::NAN], &[f64::NEG_INFINITY; 2], &[0.5, -1.0]]
        {
            assert_eq!(spread(logprobs), None, "{logprobs:?}");
        }
    }

    proptest! {
        #[test]
        fn a_spread_lies_between_0_and_1(logprobs in prop::collection::vec(-800.0..=0.0_f64, 1..50)) {
            let ChoiceSpread { entropy, mass } = spread(&logprobs).expect("logprobs");
            prop_assert!((0.0..=1.0).contains(&entropy) && (0.0..=1.0).contains(&mass));
        }
    }
}
