//! Wire forms to core's values and back, for both sides.
//!
//! What arrives is checked here and nowhere else: a value that came out is one that core's constructors accept. What
//! leaves shares its memory with the value that it came from.

mod outputs;
mod passes;
mod samples;
mod tensors;

pub use outputs::{forward_from_json, forward_from_proto, forward_to_json, forward_to_proto, loss_sum};
pub use passes::{
    CheckedPass, datum_from_json, datum_from_proto, datum_to_json, datum_to_proto, pass_from_json,
    pass_from_proto, pass_to_json, pass_to_proto,
};
pub use samples::{
    sample_request_from_wire, sample_request_to_wire, sample_response_from_json, sample_response_from_proto,
    sample_response_to_json, sample_response_to_proto,
};

use crate::types;
use minds_core::lora::{LoraSpec, Target};
use minds_core::optim::AdamParams;
use minds_core::service::BackendError;
use thiserror::Error;

/// What cannot cross between the wire and core.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConvertError {
    /// The value is malformed or out of range: its sender must change it.
    #[error("{0}")]
    Invalid(String),
    /// It is well formed, and this side has no such thing.
    #[error("{0}")]
    Unsupported(String),
}

impl ConvertError {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }

    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self::Unsupported(text.into())
    }

    /// The same complaint, with the place where it arose in front.
    #[must_use]
    pub fn at(self, place: impl std::fmt::Display) -> Self {
        match self {
            Self::Invalid(text) => Self::Invalid(format!("{place}: {text}")),
            Self::Unsupported(text) => Self::Unsupported(format!("{place}: {text}")),
        }
    }
}

impl From<ConvertError> for BackendError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Invalid(text) => Self::Rejected(text),
            ConvertError::Unsupported(text) => Self::Unsupported(text),
        }
    }
}

impl From<types::numbers::ByteLengthError> for ConvertError {
    fn from(error: types::numbers::ByteLengthError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// The settings of an optimizer step as they are sent.
#[must_use]
pub fn adam_to_wire(params: &AdamParams) -> types::WireAdamParams {
    let AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = *params;
    types::WireAdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm }
}

/// The settings of an optimizer step as they were sent.
///
/// # Errors
/// A setting out of its range.
pub fn adam_from_wire(params: &types::WireAdamParams) -> Result<AdamParams, ConvertError> {
    let types::WireAdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = *params;
    let params = AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm };
    params.check().map_err(|e| ConvertError::invalid(e.to_string()))?;
    Ok(params)
}

/// The scale that the API implies: it has no field for it.
pub const LORA_ALPHA: f64 = 32.0;

const ATTENTION: [Target; 4] = [Target::QProj, Target::KProj, Target::VProj, Target::OProj];
const FEED_FORWARD: [Target; 3] = [Target::GateProj, Target::UpProj, Target::DownProj];

/// The request for an adapter.
///
/// # Errors
/// An impossible adapter, or one that the API has no words for: another `alpha`, a part of attention or of the
/// feed-forward layer.
pub fn lora_to_wire(spec: &LoraSpec) -> Result<types::LoraConfig, ConvertError> {
    spec.check().map_err(|e| ConvertError::invalid(e.to_string()))?;
    if spec.alpha != LORA_ALPHA {
        let text = format!("alpha is {}, and over the Tinker API it is always {LORA_ALPHA}", spec.alpha);
        return Err(ConvertError::Unsupported(text));
    }
    let whole = |group: &[Target]| match group.iter().filter(|target| spec.targets.contains(target)).count() {
        0 => Ok(false),
        n if n == group.len() => Ok(true),
        _ => Err(ConvertError::unsupported(
            "the Tinker API adapts attention and feed-forward layers as a whole, not some of their parts",
        )),
    };
    Ok(types::LoraConfig {
        rank: spec.rank,
        seed: Some(seed_to_wire(spec.seed)),
        train_unembed: false,
        train_mlp: whole(&FEED_FORWARD)?,
        train_attn: whole(&ATTENTION)?,
    })
}

/// Reads the request for an adapter; `seed` is used if none was sent. `train_unembed`, which SDKs set without being
/// told to, is passed over: core's adapters have no part for it.
///
/// # Errors
/// An impossible adapter.
pub fn lora_from_wire(config: &types::LoraConfig, seed: u64) -> Result<LoraSpec, ConvertError> {
    let parts = [(config.train_attn, &ATTENTION[..]), (config.train_mlp, &FEED_FORWARD[..])];
    let targets = parts.iter().filter(|(on, _)| *on).flat_map(|(_, group)| group.iter().copied()).collect();
    let spec = LoraSpec { rank: config.rank, alpha: LORA_ALPHA, seed: config.seed.unwrap_or(seed), targets };
    spec.check().map_err(|e| ConvertError::invalid(e.to_string()))?;
    Ok(spec)
}

/// Servers take seeds of 31 bits, and some add a sample's place in its request to them, so the highest one stays free
/// for that. The upper bits of longer seeds are folded in, so that they still count.
pub(crate) fn seed_to_wire(seed: u64) -> u64 {
    let folded = seed ^ (seed >> SEED_BITS) ^ (seed >> (2 * SEED_BITS));
    if seed >> SEED_BITS == 0 { seed } else { folded & ((1 << SEED_BITS) - 1) }
}

const SEED_BITS: u32 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_leaves_room_for_the_places_of_samples() {
        for seed in [0, 7, (1 << 30) - 1] {
            assert_eq!(seed_to_wire(seed), seed);
        }
        // By hand: the bits from 30 and from 60 on fall onto those from 0 on.
        assert_eq!(seed_to_wire(1 << 30), 1);
        assert_eq!(seed_to_wire((1 << 31) - 1), (1 << 30) - 2);
        assert_eq!(seed_to_wire((1 << 60) | 6), 7);
        assert!(seed_to_wire(u64::MAX) < 1 << 30);
    }
}
