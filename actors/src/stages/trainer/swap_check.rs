//! Notices a service that takes requests for in-flight weights and does not swap them.
//!
//! The Tinker API does not tell which weights sampled a token, and a server that ignores the kind of a publication answers
//! as one that follows it. So the sampler of the first publication scores a text at later ones: if it gives the logprobs of
//! the first weights again and again while those of the newest weights are others, its weights have not been replaced.

use crate::messages::TrainingGroup;
use minds_core::ids::Token;
use minds_core::service::{BackendError, SamplingBackend};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

/// Tokens of the text. Fewer than servers keep keys and values for: those of older weights would be part of the score.
const PROBE_TOKENS: usize = 12;

/// Publications at which the first sampler must give its first logprobs. Some servers load weights after they answer.
const PUBLICATIONS: u32 = 3;

/// Longest time that a score may delay a step.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether the samplers of earlier publications follow later ones.
#[derive(Default)]
pub(super) enum SwapCheck {
    /// Nothing has been published.
    #[default]
    Unknown,
    /// The first publication, and at how many later ones its sampler gave the same logprobs.
    Watching { first: FirstPublication, kept: u32 },
    /// The samplers follow, the service could not be checked, or a warning was given.
    Done,
}

/// The sampler of the first publication, and what it gave then.
pub(super) struct FirstPublication {
    sampler: Arc<dyn SamplingBackend>,
    probe: Arc<[Token]>,
    logprobs: Vec<f32>,
}

impl SwapCheck {
    /// Checks the publication of `newest` after a step that trained these groups. True once: when it is clear that the
    /// service does not swap weights.
    pub(super) async fn is_ignored(
        &mut self,
        newest: &Arc<dyn SamplingBackend>,
        groups: &[TrainingGroup],
    ) -> bool {
        if tells_versions(groups) {
            *self = Self::Done;
        }
        if matches!(self, Self::Done) {
            return false;
        }
        let late = |_| Err(BackendError::TimedOut(format!("no score within {} s", LONGEST.as_secs())));
        let observed = timeout(LONGEST, self.observe(newest, groups)).await.unwrap_or_else(late);
        observed.unwrap_or_else(|error| {
            debug!(%error, "failed to check whether the service swaps in-flight weights");
            *self = Self::Done;
            false
        })
    }

    async fn observe(
        &mut self,
        newest: &Arc<dyn SamplingBackend>,
        groups: &[TrainingGroup],
    ) -> Result<bool, BackendError> {
        let Self::Watching { first, kept } = self else {
            let Some(probe) = probe(groups) else { return Ok(false) };
            let sampler = newest.clone();
            let logprobs = score(&*sampler, &probe).await?;
            *self = Self::Watching { first: FirstPublication { sampler, probe, logprobs }, kept: 0 };
            return Ok(false);
        };
        let now = score(&*first.sampler, &first.probe).await?;
        let of_newest = score(&**newest, &first.probe).await?;
        if of_newest == first.logprobs {
            // These weights cannot be told apart.
            return Ok(false);
        }
        if distance(&now, &first.logprobs) >= distance(&now, &of_newest) {
            *self = Self::Done;
            return Ok(false);
        }
        *kept += 1;
        let is_ignored = *kept == PUBLICATIONS;
        if is_ignored {
            *self = Self::Done;
        }
        Ok(is_ignored)
    }
}

/// Whether the service names the weights of each token, as one does that swaps them.
fn tells_versions(groups: &[TrainingGroup]) -> bool {
    let turns = groups.iter().flat_map(|group| group.members.iter()).flat_map(|m| &m.rollout.turns);
    turns.into_iter().any(|turn| !turn.completion.versions.is_empty())
}

/// The end of a rollout that was trained.
fn probe(groups: &[TrainingGroup]) -> Option<Arc<[Token]>> {
    let mut turns = groups.iter().flat_map(|group| group.members.iter()).flat_map(|m| &m.rollout.turns);
    let text = turns.find_map(|turn| {
        let text = [&turn.prompt[..], &turn.completion.tokens].concat();
        (text.len() > 1).then_some(text)
    })?;
    Some(text[text.len().saturating_sub(PROBE_TOKENS)..].into())
}

async fn score(sampler: &dyn SamplingBackend, probe: &Arc<[Token]>) -> Result<Vec<f32>, BackendError> {
    Ok(sampler.logprobs(probe.clone()).await?.into_iter().flatten().collect())
}

/// Sum of the differences between logprobs of the same tokens.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum()
}
