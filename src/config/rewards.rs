//! Queries that rewards may make: the weights, the limits, and the shadow adapters for gradient steps.

use super::environments::LONGEST_S;
use super::file::ConfigFile;
use super::{at_least_one, choose, one_of};
use minds_core::lora::LoraSpec;
use minds_core::optim::AdamParams;
use minds_stages::policy::QueryLimits;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

/// The weights that answer logprob queries of rewards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OraclePlan {
    /// The version that sampled the group.
    Sampled,
    /// The newest version when the reward is computed.
    Latest,
    /// The base model without an adapter.
    Base,
    /// Saved sampler weights, by their path on the service.
    Pinned(String),
}

/// The weights that shadow adapters start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowFrom {
    /// The policy version that sampled the rollout.
    Policy,
    /// The base model without an adapter.
    Base,
}

/// Most logprob queries in flight.
const MOST_QUERIES: usize = 4096;
/// Most rewards computed at a time.
const MOST_SCORERS: usize = 65_536;
/// Most shadow adapters beside the one in training.
const MOST_SHADOWS: usize = 64;
pub(super) const ORACLES: &[(&str, OraclePlan)] =
    &[("sampled", OraclePlan::Sampled), ("latest", OraclePlan::Latest), ("base", OraclePlan::Base)];
pub(super) const SHADOW_FROM: &[(&str, ShadowFrom)] =
    &[("policy", ShadowFrom::Policy), ("base", ShadowFrom::Base)];

/// A key and the problem with its value.
type StaticKeyProblem = (&'static str, String);

/// Resolved limits and weights of reward queries.
pub(super) struct RewardPlan {
    /// Rewards computed at a time.
    pub scorers: NonZeroUsize,
    /// The weights that answer logprob queries.
    pub oracle: OraclePlan,
    /// Limits on logprob queries.
    pub queries: QueryLimits,
    /// Longest that one reward may take.
    pub timeout: Duration,
}

impl RewardPlan {
    /// Checks the keys and fills in defaults.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(file: &ConfigFile) -> Result<Self, StaticKeyProblem> {
        let scorer = &file.scorer;
        let oracle = match scorer.policy.as_deref() {
            None => OraclePlan::Sampled,
            Some(written) => oracle(written).map_err(|problem| ("scorer.policy", problem))?,
        };
        let timeout = match scorer.timeout_s.unwrap_or(600) {
            seconds if !(1..=LONGEST_S).contains(&seconds) => {
                let problem = format!("is {seconds}, it must lie between 1 and {LONGEST_S}");
                return Err(("scorer.timeout_s", problem));
            }
            seconds => Duration::from_secs(seconds),
        };
        let count = |key, value| at_least_one(value).map_err(|problem| (key, problem));
        let concurrency = count("scorer.concurrency", scorer.concurrency.unwrap_or(128))?;
        if concurrency.get() > MOST_QUERIES {
            let problem = format!("is {concurrency}, it must be at most {MOST_QUERIES}");
            return Err(("scorer.concurrency", problem));
        }
        let queries = QueryLimits {
            concurrency,
            per_step: NonZeroU64::new(scorer.queries_per_step.unwrap_or(0)),
            // Half of the reward's own limit, so that the error names the cause.
            wait_limit: timeout / 2,
        };
        let scorers = count("scorer.workers", scorer.workers.unwrap_or(16))?;
        if scorers.get() > MOST_SCORERS {
            return Err(("scorer.workers", format!("is {scorers}, it must be at most {MOST_SCORERS}")));
        }
        Ok(Self { scorers, oracle, queries, timeout })
    }
}

fn oracle(written: &str) -> Result<OraclePlan, String> {
    let pinned = written.strip_prefix("pinned:").filter(|weights| !weights.is_empty());
    let named = ORACLES.iter().find(|(name, _)| *name == written).map(|(_, oracle)| oracle.clone());
    named.or_else(|| pinned.map(|weights| OraclePlan::Pinned(weights.to_owned()))).ok_or_else(|| {
        let names = ORACLES.iter().map(|(name, _)| *name).chain(["pinned:<path of sampler weights>"]);
        format!("is \"{written}\", it must be {}", one_of(written, names))
    })
}

/// Resolved settings of the shadow adapters, which measure gradient steps.
pub(super) struct ShadowPlan {
    /// Number of shadow adapters.
    pub adapters: NonZeroUsize,
    /// LoRA shape of the shadow adapters.
    pub lora: LoraSpec,
    /// Optimizer parameters of the measured step.
    pub adam: AdamParams,
    /// Weights that shadow adapters start from.
    pub from: ShadowFrom,
}

impl ShadowPlan {
    /// Checks the keys; `policy` is the adapter shape of the policy.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(file: &ConfigFile, policy: &LoraSpec, seed: u64) -> Result<Self, StaticKeyProblem> {
        let shadow = &file.shadow;
        let from = choose(shadow.from.as_deref(), SHADOW_FROM).map_err(|problem| ("shadow.from", problem))?;
        // A copy of the policy has the policy's shape.
        let lora = match (from, shadow.rank) {
            (ShadowFrom::Policy, Some(rank)) if rank != policy.rank => {
                let problem = format!(
                    "is {rank}: shadows that start from the policy have its rank, which is {} (`trainer.training_rank`); \
                     leave it out, or set `shadow.from` to \"base\"",
                    policy.rank
                );
                return Err(("shadow.rank", problem));
            }
            (ShadowFrom::Policy, _) => policy.clone(),
            (ShadowFrom::Base, rank) => {
                LoraSpec { alpha: 32.0, ..LoraSpec::all_linear(rank.unwrap_or(8), seed) }
            }
        };
        lora.check().map_err(|error| ("shadow.rank", format!("is wrong: {error}")))?;
        let adapters =
            at_least_one(shadow.adapters.unwrap_or(1)).map_err(|problem| ("shadow.adapters", problem))?;
        if adapters.get() > MOST_SHADOWS {
            return Err(("shadow.adapters", format!("is {adapters}, it must be at most {MOST_SHADOWS}")));
        }
        let adam =
            AdamParams { learning_rate: shadow.learning_rate.unwrap_or(1e-3), ..AdamParams::default() };
        adam.check().map_err(|error| {
            ("shadow.learning_rate", format!("is {}, it must {}", error.value, error.must))
        })?;
        Ok(Self { adapters, lora, adam, from })
    }
}
