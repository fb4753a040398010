//! The `[scorer]` and `[shadow]` tables: queries that rewards may make, and the shadow adapters for gradient steps.

use super::choice::chosen;
use super::environments::LONGEST_S;
use super::error::{KeyProblem, at_most};
use super::file::{ScorerConfig, ShadowConfig};
use super::nats::Transport;
use super::optim::{MOST_RATE, bounded};
use minds_core::lora::LoraSpec;
use minds_core::number::ShortNumber;
use minds_core::optim::AdamParams;
use minds_stages::policy::QueryLimits;
use minds_stages::service::retry::Retry;
use minds_stages::shadow::ShadowTrainerOptions;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

/// The weights that answer logprob queries of rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OracleWeights {
    /// The version that sampled the group.
    #[default]
    Sampled,
    /// The newest version when the reward is computed.
    Latest,
    /// The base model without an adapter.
    Base,
}

/// The weights that shadow adapters start from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ShadowFrom {
    /// The policy version that sampled the rollout.
    #[default]
    Policy,
    /// The base model without an adapter.
    Base,
}

const SCORERS: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not 0");
/// Most rewards computed at a time.
const MOST_SCORERS: NonZeroUsize = NonZeroUsize::new(65_536).expect("65536 is not 0");
/// Most logprob queries in flight.
const MOST_QUERIES: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not 0");
/// Most shadow adapters beside the one in training.
const MOST_SHADOWS: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not 0");

/// Rewards computed at a time. Those that wait for a worker cost only memory, so that by default all rollouts in flight
/// may do so.
pub(super) fn scorers(scorer: &ScorerConfig, rollouts_in_flight: u64) -> Result<NonZeroUsize, KeyProblem> {
    let usual = match chosen(scorer.transport) {
        Transport::Local => SCORERS,
        Transport::Nats => {
            let rollouts = NonZeroUsize::new(usize::try_from(rollouts_in_flight).unwrap_or(usize::MAX));
            rollouts.unwrap_or(NonZeroUsize::MIN).clamp(SCORERS, MOST_SCORERS)
        }
    };
    at_most("scorer.workers", scorer.workers.unwrap_or(usual), MOST_SCORERS)
}

/// Longest that one reward may take.
pub(super) fn score_timeout(scorer: &ScorerConfig) -> Result<Duration, KeyProblem> {
    let seconds = scorer.timeout_s.map_or(600, NonZeroU64::get);
    at_most("scorer.timeout_s", seconds, LONGEST_S).map(Duration::from_secs)
}

/// Limits on the logprob queries of rewards.
pub(super) fn queries(scorer: &ScorerConfig) -> Result<QueryLimits, KeyProblem> {
    let usual = QueryLimits::default().concurrency;
    Ok(QueryLimits {
        concurrency: at_most("scorer.concurrency", scorer.concurrency.unwrap_or(usual), MOST_QUERIES)?,
        per_step: scorer.queries_per_step.and_then(NonZeroU64::new),
        // Half of the reward's own limit, so that the error names the cause.
        wait_limit: score_timeout(scorer)? / 2,
    })
}

/// The shadow adapters; `policy` is the shape of the adapter in training.
pub(super) fn shadow(
    shadow: &ShadowConfig,
    policy: &LoraSpec,
    retry: Retry,
) -> Result<ShadowTrainerOptions, KeyProblem> {
    let adapters = shadow.adapters.unwrap_or(NonZeroUsize::MIN);
    let adam = AdamParams { learning_rate: shadow.learning_rate.unwrap_or(1e-3), ..AdamParams::default() };
    adam.check().map_err(|error| {
        let problem = format!("is {}; it must {}", ShortNumber(error.value), error.must);
        KeyProblem::new("shadow.learning_rate", problem)
    })?;
    bounded("shadow.learning_rate", adam.learning_rate, MOST_RATE)?;
    Ok(ShadowTrainerOptions {
        adapters: at_most("shadow.adapters", adapters, MOST_SHADOWS)?,
        lora: shadow_lora(shadow, policy)?,
        adam,
        retry,
    })
}

fn shadow_lora(shadow: &ShadowConfig, policy: &LoraSpec) -> Result<LoraSpec, KeyProblem> {
    let lora = match (chosen(shadow.from), shadow.rank) {
        // A copy of the policy has the policy's shape.
        (ShadowFrom::Policy, Some(rank)) if rank != policy.rank => {
            let problem = format!(
                "is {rank}: shadows that start from the policy have its rank, which is {} (`trainer.training_rank`); \
                 leave it out, or set `shadow.from` to \"base\"",
                policy.rank
            );
            return Err(KeyProblem::new("shadow.rank", problem));
        }
        (ShadowFrom::Policy, _) => policy.clone(),
        (ShadowFrom::Base, rank) => {
            LoraSpec { alpha: 32.0, ..LoraSpec::all_linear(rank.unwrap_or(8), policy.seed) }
        }
    };
    lora.check().map_err(|error| KeyProblem::new("shadow.rank", format!("is wrong: {error}")))?;
    Ok(lora)
}
