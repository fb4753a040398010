//! Low-rank adapters: which layers have one, how wide, how scaled.

use crate::number::ShortNumber;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A linear layer that can carry an adapter, named as PEFT names `target_modules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Query projection of attention.
    QProj,
    /// Key projection of attention.
    KProj,
    /// Value projection of attention.
    VProj,
    /// Output projection of attention.
    OProj,
    /// Gate of the feed-forward layer.
    GateProj,
    /// Up projection of the feed-forward layer.
    UpProj,
    /// Down projection of the feed-forward layer.
    DownProj,
}

impl Target {
    /// All seven linear layers of a block, in the order of the forward pass.
    pub const ALL: [Self; 7] =
        [Self::QProj, Self::KProj, Self::VProj, Self::OProj, Self::GateProj, Self::UpProj, Self::DownProj];

    /// PEFT's name, for example `q_proj`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QProj => "q_proj",
            Self::KProj => "k_proj",
            Self::VProj => "v_proj",
            Self::OProj => "o_proj",
            Self::GateProj => "gate_proj",
            Self::UpProj => "up_proj",
            Self::DownProj => "down_proj",
        }
    }
}

/// What an adapter is made of. The product `B·A` is scaled by `alpha / rank`
/// (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraSpec {
    /// Inner width of the adapter, in 1..=512.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Seed of the random `A`; `B` starts at zero.
    pub seed: u64,
    /// Layers that carry an adapter, without repetition.
    pub targets: Vec<Target>,
}

/// A spec that no engine can build.
#[derive(Debug, Error, PartialEq)]
pub enum LoraSpecError {
    /// The rank is zero or beyond 512.
    #[error("the rank must lie in 1..=512, got {0}")]
    Rank(usize),
    /// Alpha is not a positive finite number.
    #[error("alpha must be a positive finite number, got {}", ShortNumber(*.0))]
    Alpha(f64),
    /// No layer is named, or one twice.
    #[error("the target modules must be named once each and not be empty")]
    Targets,
}

impl LoraSpec {
    /// An adapter on all seven linear layers with `alpha` 32, the scale that the measured learning rates belong to.
    #[must_use]
    pub fn all_linear(rank: usize, seed: u64) -> Self {
        Self { rank, alpha: 32.0, seed, targets: Target::ALL.to_vec() }
    }

    /// Factor `alpha / rank` applied to `B·A`.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Checks that an engine can build the adapter.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn check(&self) -> Result<(), LoraSpecError> {
        if !(1..=512).contains(&self.rank) {
            return Err(LoraSpecError::Rank(self.rank));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(LoraSpecError::Alpha(self.alpha));
        }
        let mut seen = self.targets.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.is_empty() || seen.len() != self.targets.len() {
            return Err(LoraSpecError::Targets);
        }
        Ok(())
    }
}
