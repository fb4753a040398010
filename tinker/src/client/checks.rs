//! Requests that the client itself rejects, because servers mishandle them: some hang, some return NaN, some corrupt
//! the weights of other models.

use super::error::ClientError;
use crate::types::CheckpointPath;
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::sampling::{SampleRequest, SampleResponse, Stop};
use minds_core::service::LOGPROB_ROUNDING;

/// Limits of the model, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLimits {
    /// Tokens in the vocabulary.
    pub vocab: Option<usize>,
    /// Maximum sequence length in tokens.
    pub context: Option<usize>,
}

impl ModelLimits {
    /// Tokens go over the wire as signed 32-bit numbers.
    fn token(&self, token: Token) -> Result<(), String> {
        let vocab = self.vocab.unwrap_or(i32::MAX as usize);
        if (token as usize) < vocab {
            return Ok(());
        }
        Err(format!("the token {token} is outside of the vocabulary of {vocab}"))
    }

    fn length(&self, len: usize) -> Result<(), String> {
        match self.context {
            Some(context) if len > context => {
                Err(format!("{len} tokens are longer than the context of {context}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_data(&self, what: &str, data: &[Datum], loss: Loss) -> Result<(), ClientError> {
        if data.is_empty() {
            return Err(ClientError::rejected(what, "the request has no data"));
        }
        for (index, datum) in data.iter().enumerate() {
            let check = || {
                self.length(datum.len())?;
                datum.input().iter().chain(datum.targets()).try_for_each(|token| self.token(*token))?;
                if matches!(datum.inputs(), LossInputs::Weights(_)) != (loss == Loss::CrossEntropy) {
                    return Err(format!("its tensors are not those of the loss {}", loss.name()));
                }
                if loss.needs_provenance() && datum.provenance().is_none() {
                    return Err(format!(
                        "the loss {} needs provenance: take the samples with record_stability_info, from a service that \
                         names them",
                        loss.name()
                    ));
                }
                Ok(())
            };
            check().map_err(|e| ClientError::rejected(what, format!("datum {index}: {e}")))?;
        }
        Ok(())
    }

    pub(super) fn check_sample(&self, what: &str, request: &SampleRequest) -> Result<(), ClientError> {
        let rejected = |detail: String| ClientError::rejected(what, detail);
        request.check().map_err(|e| rejected(e.to_string()))?;
        self.length(request.prompt.len()).map_err(rejected)?;
        let stops = match &request.params.stop {
            Stop::Tokens(tokens) => &tokens[..],
            Stop::ModelDefault | Stop::Strings(_) => &[],
        };
        request.prompt.iter().chain(stops).try_for_each(|token| self.token(*token)).map_err(rejected)
    }

    /// Checks that a response fits its request.
    pub(super) fn check_samples(
        &self,
        response: &SampleResponse,
        request: &SampleRequest,
    ) -> Result<(), String> {
        let asked = request.num_samples;
        let came = response.sequences.len();
        if asked != came {
            return Err(format!("{asked} samples were requested, {came} arrived"));
        }
        let most = request.params.max_tokens;
        for sample in &response.sequences {
            if sample.tokens.len() > most {
                return Err(format!("a sample has {} tokens, {most} were asked for", sample.tokens.len()));
            }
            sample.tokens.iter().try_for_each(|token| self.token(*token))?;
            check_logprobs(&sample.logprobs)?;
        }
        check_logprobs(response.prompt_logprobs.iter().flatten().flatten())
    }
}

/// Checks that every server accepts the name and that it stays a single segment of an address.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), ClientError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && name.chars().all(plain) && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(ClientError::rejected(
        what,
        format!("`{name}` is not a valid name for weights: use letters, digits, `-`, `_` and `.`"),
    ))
}

/// Checks the address of saved weights that a server returns, before the client stores it.
pub(super) fn check_saved(path: &str) -> Result<(), String> {
    path.parse::<CheckpointPath>().map(|_| ()).map_err(|e| e.to_string())
}

/// Checks that no logprob is above 0 by more than rounding explains.
pub(super) fn check_logprobs<'a>(logprobs: impl IntoIterator<Item = &'a f32>) -> Result<(), String> {
    match logprobs.into_iter().find(|lp| **lp > LOGPROB_ROUNDING) {
        Some(lp) => Err(format!("it holds a logprob of {lp}, which would be a probability above 1")),
        None => Ok(()),
    }
}

pub(super) fn check_path(what: &str, path: &str) -> Result<CheckpointPath, ClientError> {
    path.parse::<CheckpointPath>().map_err(|e| ClientError::rejected(what, e.to_string()))
}
