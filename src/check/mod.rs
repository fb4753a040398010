//! Estimates what a plan would use, before anything is started.
//!
//! Sizes come from the code that sets them: credits and mailboxes from the pipeline's options, the memory from the
//! engine. Values that cannot be known beforehand are left out or reported as a bound.

mod forecast;
pub mod machine;
mod model;
mod requests;
mod result;
mod stub_model;
mod tokens;

pub use forecast::CostForecast;
pub use requests::{EnvironmentUsage, StepRequest, requests};
pub use result::{CheckResult, try_package};
pub use tokens::TokenEstimate;

use crate::config::RunPlan;
use minds_core::architecture::Architecture;
use minds_engine::adapter::training_bytes;
use minds_models::expected_tensors;
use minds_stages::pipeline::MailboxCapacities;
use serde::Serialize;

/// Memory use of one part of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    /// Name of the part, such as `weights`.
    pub what: &'static str,
    /// Estimated number of bytes.
    pub bytes: u64,
}

/// Capacity of each mailbox, in the order of the pipeline.
#[must_use]
pub fn mailboxes(plan: &RunPlan) -> Vec<(&'static str, usize)> {
    let capacities = MailboxCapacities::of(&plan.pipeline, plan.group_size.get());
    let used = |name: &str| !plan.pipeline.is_supervised() || ["groups", "batches"].contains(&name);
    capacities
        .named()
        .into_iter()
        .filter(|(name, _)| used(name))
        .map(|(name, capacity)| (name, capacity.get()))
        .collect()
}

/// Estimated memory use of the embedded engine, by part.
#[must_use]
pub fn memory(plan: &RunPlan, architecture: &Architecture, measures: bool) -> Vec<MemoryUse> {
    let Some(engine) = plan.service.engine() else { return Vec::new() };
    let parameters: usize =
        expected_tensors(architecture).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let share = |what, bytes: usize| MemoryUse { what, bytes: bytes as u64 };
    let mut shares = vec![
        // The engine computes in 32 bits whatever the file holds.
        share("weights", parameters * size_of::<f32>()),
        share("keys and values", engine.kv_bytes),
        share("adapter", training_bytes(architecture, &plan.lora)),
    ];
    if measures {
        let one = training_bytes(architecture, &plan.shadow.lora);
        shares.push(share("shadow adapters", one * plan.shadow.adapters.get()));
    }
    shares
}

/// Sum of the bytes of all parts.
#[must_use]
pub fn total_bytes(memory: &[MemoryUse]) -> u64 {
    memory.iter().map(|share| share.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::EnvConfig;

    #[test]
    fn the_memory_is_that_of_what_the_engine_makes() {
        let env = EnvConfig { id: "target_number".into(), ..EnvConfig::default() };
        let plan = RunPlan::embedded(env, minds_models::TINY_RANDOM, None, 0).unwrap();
        let architecture = Architecture::tiny();
        let Architecture { vocab, dim, layers, heads, kv_heads, head_dim, ffn, .. } = architecture;
        // One layer: four projections of attention, three of the block behind it, two norms; then the embedding, which is
        // the head too if they are tied, and the last norm.
        let layer = 2 * dim * heads * head_dim + 2 * dim * kv_heads * head_dim + 3 * dim * ffn + 2 * dim;
        let head = if architecture.tied_head { 1 } else { 2 };
        let weights = 4 * (layers * layer + head * vocab * dim + dim);
        let shares = memory(&plan, &architecture, false);
        assert_eq!(shares[0], MemoryUse { what: "weights", bytes: weights as u64 });
        assert_eq!(shares[1].bytes, 768 << 20);
        assert_eq!(shares.len(), 3);
        assert_eq!(memory(&plan, &architecture, true).len(), 4);
    }
}
