//! `rollouts/step_000001.jsonl`: the rollouts trained in a step, one a line.

use anyhow::Context as _;
use minds_core::reward::Metrics;
use minds_stages::messages::StepRecord;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Serialize)]
struct RolloutRow<'a> {
    step: u64,
    environment: &'a str,
    group: u64,
    item: u64,
    member: u32,
    policy: u64,
    reward: f32,
    advantage: f32,
    metrics: &'a Metrics,
    /// Conversation before the first completion.
    prompt: &'a [minds_core::chat::Message],
    turns: Vec<TurnRow<'a>>,
}

#[derive(Serialize)]
struct TurnRow<'a> {
    text: &'a str,
    complete: bool,
    prompt_tokens: usize,
    tokens: &'a [u32],
    logprobs: &'a [f32],
}

pub(super) fn write(folder: &Path, step: &StepRecord) -> anyhow::Result<()> {
    let mut lines = String::new();
    for group in &step.groups {
        for member in group.members.iter() {
            let row = RolloutRow {
                step: step.step,
                environment: &group.group.component.name,
                group: group.group.id.0,
                item: group.group.key.item,
                member: member.rollout.id.member,
                policy: member.rollout.policy.0,
                reward: member.score.reward.get(),
                advantage: member.advantage,
                metrics: &member.score.metrics,
                prompt: member.rollout.prompt(&group.group.item),
                turns: member
                    .rollout
                    .turns
                    .iter()
                    .map(|turn| TurnRow {
                        text: &turn.text,
                        complete: turn.complete,
                        prompt_tokens: turn.prompt.len(),
                        tokens: &turn.completion.tokens,
                        logprobs: &turn.completion.logprobs,
                    })
                    .collect(),
            };
            writeln!(lines, "{}", serde_json::to_string(&row)?)?;
        }
    }
    let path = folder.join(format!("step_{:06}.jsonl", step.step));
    super::write_whole(&path, &lines)
        .with_context(|| format!("failed to keep the rollouts of step {}", step.step))
}

/// Moves the rollouts of later steps aside, to `step_000007.past.jsonl`: these steps are taken again, but the first
/// rollouts are worth keeping.
pub(super) fn keep_until(folder: &Path, step: u64) -> anyhow::Result<()> {
    let failed = || format!("failed to move rollouts after step {step} aside");
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name.strip_prefix("step_").and_then(|rest| rest.strip_suffix(".jsonl"));
        if number.and_then(|number| number.parse::<u64>().ok()).is_some_and(|number| number > step) {
            let past = super::aside(folder, &name.replace(".jsonl", ".past"), "jsonl");
            std::fs::rename(&path, past).with_context(failed)?;
        }
    }
    Ok(())
}
