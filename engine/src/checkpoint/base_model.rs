//! The base model as a checkpoint remembers it.

use crate::error::EngineError;
use crate::kv_cache::KvCache;
use crate::model::{Model, SequenceExtension, extend, log_sum_exp, logits};
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use serde::{Deserialize, Serialize};

/// Positions whose log-probs identify the model.
const PROBES: usize = 8;
/// Most by which they may differ between machines.
const TOLERANCE: f32 = 2e-3;

/// A base model by what it computes: names can lie, and hashes change with the file format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseModelIdentity {
    /// Its name, for people.
    pub name: String,
    /// Its shape.
    pub architecture: Architecture,
    /// Log-probs of a few fixed tokens.
    pub probe: Vec<f32>,
}

impl BaseModelIdentity {
    /// Asks the model.
    ///
    /// # Errors
    /// A model that cannot run.
    pub fn of(name: &str, model: &Model<f32>) -> Result<Self, EngineError> {
        let architecture = model.architecture().clone();
        let vocab = architecture.vocab;
        let count = (PROBES + 1).min(architecture.context);
        let tokens: Vec<Token> = (0..count).map(|i| (i * 7919 % vocab) as Token).collect();
        let mut kv = KvCache::root(model);
        let hidden = extend(model, &mut [SequenceExtension { adapter: None, tokens: &tokens, kv: &mut kv }])?;
        let rows: Vec<usize> = hidden.rows(0).collect();
        let block = logits(model, &hidden, &rows);
        let next = tokens[1..].iter();
        let probe =
            block.chunks(vocab).zip(next).map(|(row, t)| row[*t as usize] - log_sum_exp(row)).collect();
        Ok(Self { name: name.into(), architecture, probe })
    }

    /// Why an adapter of `other` does not belong here, if it does not.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE;
        let same = self.architecture == other.architecture
            && self.probe.len() == other.probe.len()
            && self.probe.iter().zip(&other.probe).all(near);
        (!same).then(|| format!("it was trained on the base model `{}`, this is `{}`", other.name, self.name))
    }
}
