//! The identity of the base model, as a checkpoint stores it.

use crate::error::EngineError;
use crate::kv_cache::KvCache;
use crate::model::{Model, SequenceExtension, extend, log_sum_exp, logits};
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use serde::{Deserialize, Serialize};

/// Positions whose logprobs identify the model.
const PROBES: usize = 8;
/// Largest accepted difference of these logprobs between machines.
const TOLERANCE: f32 = 2e-3;

/// Identifies a base model by what it computes: names can be wrong, and hashes change with the file format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseModelIdentity {
    /// Name of the model, for display only.
    pub name: String,
    /// Shape of the model.
    pub architecture: Architecture,
    /// Logprobs of a few fixed tokens.
    pub probe: Vec<f32>,
}

impl BaseModelIdentity {
    /// Runs the model on the fixed tokens.
    ///
    /// # Errors
    /// A model that cannot run.
    pub fn of(name: &str, model: &Model<f32>) -> Result<Self, EngineError> {
        let architecture = model.architecture().clone();
        let vocab = architecture.vocab;
        let count = (PROBES + 1).min(architecture.context);
        let tokens: Vec<Token> = (0..count).map(|i| (i * 7919 % vocab) as Token).collect();
        let mut kv = KvCache::root(model.architecture());
        let hidden = extend(model, &mut [SequenceExtension { adapter: None, tokens: &tokens, kv: &mut kv }])?;
        let rows: Vec<usize> = hidden.rows(0).collect();
        let block = logits(model, &hidden, &rows);
        let next = tokens[1..].iter();
        let probe =
            block.chunks(vocab).zip(next).map(|(row, t)| row[*t as usize] - log_sum_exp(row)).collect();
        Ok(Self { name: name.into(), architecture, probe })
    }

    /// Why an adapter of `other` does not fit this base model; `None` if it fits.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE;
        let same = self.architecture == other.architecture
            && self.probe.len() == other.probe.len()
            && self.probe.iter().zip(&other.probe).all(near);
        (!same).then(|| format!("it was trained on the base model `{}`, this is `{}`", other.name, self.name))
    }
}
