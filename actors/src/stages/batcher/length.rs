//! How the length of completions counts beside the reward: cut-off rollouts, overlong ones, and long ones among good ones.
//!
//! What an environment rewards is recorded as it is; only advantages see the difference.

use minds_core::rollout::Rollout;
use minds_core::sampling::StopReason;
use serde::{Deserialize, Serialize};
use std::num::NonZeroUsize;

/// What becomes of a rollout whose last completion was cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TruncatedRollouts {
    /// It is trained on its reward as any other.
    #[default]
    Keep,
    /// It counts in the baseline of its group, and its tokens are left out of the loss (overlong filtering, Yu et al. 2025,
    /// "DAPO", §3.4).
    Mask,
}

/// What length changes about rewards and the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LengthShaping {
    /// What becomes of rollouts that were cut off.
    pub truncated: TruncatedRollouts,
    /// Tokens before the limit from which on a completion costs reward; `None` for no such penalty.
    pub overlong_buffer: Option<NonZeroUsize>,
    /// Most that length costs among the rollouts of a group that are better than its mean.
    pub length_penalty: f64,
}

/// A rollout as far as its length counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutLength {
    /// Tokens of all its completions.
    tokens: usize,
    /// Tokens of its longest completion.
    longest: usize,
    /// Whether the last completion was cut off.
    pub truncated: bool,
}

impl RolloutLength {
    /// The lengths of the completions of a rollout.
    #[must_use]
    pub fn of(rollout: &Rollout) -> Self {
        let lengths = || rollout.turns.iter().map(|turn| turn.completion.tokens.len());
        let last = rollout.turns.last();
        Self {
            tokens: lengths().sum(),
            longest: lengths().max().unwrap_or(0),
            truncated: last.is_some_and(|turn| turn.completion.stop == StopReason::Length),
        }
    }
}

impl LengthShaping {
    /// Whether length changes any reward.
    #[must_use]
    pub fn changes_rewards(&self) -> bool {
        self.overlong_buffer.is_some() || self.length_penalty > 0.0
    }

    /// What is added to each reward of a group, at most 0. `limit` is the most tokens of a completion.
    ///
    /// * Soft overlong penalty (DAPO, eq. 13): 0 up to `limit - buffer` tokens, from there on a line to -1 at the limit.
    /// * Length penalty: of the rollouts whose reward is above the mean of the group, the longest loses `length_penalty`, the
    ///   shortest nothing, the others in proportion (after Kimi Team 2025, "Kimi k1.5", §2.3.3). None of them falls below the
    ///   mean, and those at or below it gain nothing by being short, so that empty answers earn nothing.
    #[must_use]
    pub fn shaping(&self, rewards: &[f64], lengths: &[RolloutLength], limit: usize) -> Vec<f64> {
        let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
        let good = || {
            rewards.iter().zip(lengths).filter(|(reward, _)| **reward > mean).map(|(_, length)| length.tokens)
        };
        let shortest = good().min().unwrap_or(0);
        let spread = good().max().unwrap_or(0) - shortest;
        let change = |(reward, length): (&f64, &RolloutLength)| {
            let mut change = 0.0;
            if *reward > mean && spread > 0 {
                let share = (length.tokens - shortest) as f64 / spread as f64;
                change -= (self.length_penalty * share).min(reward - mean);
            }
            if let Some(buffer) = self.overlong_buffer {
                let buffer = buffer.get().min(limit);
                let over = length.longest.saturating_sub(limit - buffer);
                change -= (over as f64 / buffer.max(1) as f64).min(1.0);
            }
            change
        };
        rewards.iter().zip(lengths).map(change).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(tokens: usize) -> RolloutLength {
        RolloutLength { tokens, longest: tokens, truncated: false }
    }

    /// By hand: a limit of 100 with a buffer of 20 costs 0 at 80, 1/4 at 85, 1 at 100.
    #[test]
    fn the_overlong_penalty_is_a_line_over_the_buffer() {
        let shaping = LengthShaping { overlong_buffer: NonZeroUsize::new(20), ..LengthShaping::default() };
        let lengths = [0, 80, 85, 100].map(length);
        assert_eq!(shaping.shaping(&[1.0; 4], &lengths, 100), [0.0, 0.0, -0.25, -1.0]);
        assert!(shaping.changes_rewards() && !LengthShaping::default().changes_rewards());
        // A buffer beyond the limit is the whole limit.
        let wide = LengthShaping { overlong_buffer: NonZeroUsize::new(400), ..LengthShaping::default() };
        assert_eq!(wide.shaping(&[0.0], &[length(50)], 100), [-0.5]);
    }

    /// Rewards 1, 1, 1, 0 have the mean 3/4. Of the three good ones with 10, 20 and 30 tokens the longest would lose 0.4 and
    /// loses 1/4, so that it stays at the mean; the wrong one with no token at all gets nothing.
    #[test]
    fn only_good_rollouts_pay_for_their_length_and_none_falls_below_the_mean() {
        let shaping = LengthShaping { length_penalty: 0.4, ..LengthShaping::default() };
        let lengths = [10, 20, 30, 0].map(length);
        let found = shaping.shaping(&[1.0, 1.0, 1.0, 0.0], &lengths, 100);
        assert_eq!(found, [0.0, -0.2, -0.25, 0.0]);
        // Equal rewards, or equal lengths: nothing to compare.
        assert_eq!(shaping.shaping(&[1.0, 1.0], &[length(1), length(9)], 100), [0.0, 0.0]);
        assert_eq!(shaping.shaping(&[1.0, 0.0], &[length(5), length(5)], 100), [0.0, 0.0]);
        assert_eq!(shaping.shaping(&[], &[], 100), [0.0; 0]);
    }
}
