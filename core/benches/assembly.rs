//! What it takes to make the data of a large batch: 64 groups of 16 rollouts with 8,500 tokens each, on one thread.
//!
//! Prints the Markdown of `benches/README.md`.
#![expect(clippy::print_stdout, reason = "the table is the output")]
#![expect(clippy::disallowed_methods, reason = "real time is measured, and core has no runtime")]

use minds_core::datum::Datum;
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId, Token};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::{Completion, StopReason};
use std::time::Instant;

const GROUPS: u64 = 64;
const MEMBERS: u32 = 16;
const PROMPT: usize = 200;
const COMPLETION: usize = 8300;
const ROUNDS: usize = 5;

fn main() {
    let rollouts: Vec<Rollout> =
        (0..GROUPS).flat_map(|group| (0..MEMBERS).map(move |member| rollout(group, member))).collect();
    let tokens: usize =
        rollouts.iter().map(|rollout| rollout.prompt_tokens() + rollout.sampled_tokens()).sum();
    let seconds = (0..ROUNDS).map(|_| assemble(&rollouts)).fold(f64::INFINITY, f64::min);
    println!("| measure | unit | value | goal | reached |");
    println!("|---|---|---|---|---|");
    println!(
        "| data of {:.1} M tokens, best of {ROUNDS} | s | {seconds:.3} | ≤ 0.2 | {} |",
        tokens as f64 / 1e6,
        if seconds <= 0.2 { "yes" } else { "no" }
    );
}

/// Seconds for the data of all rollouts, which live until the last one is made.
fn assemble(rollouts: &[Rollout]) -> f64 {
    let begun = Instant::now();
    let mut data: Vec<Datum> = Vec::with_capacity(rollouts.len());
    for rollout in rollouts {
        let turns = &rollout.turns;
        // As the batcher asks for it: tokens with an absurd logprob are left out.
        let advantage =
            |turn: usize, token: usize| (turns[turn].completion.logprobs[token] >= -16.0).then_some(0.25);
        data.extend(rollout.data(advantage).expect("all logprobs are finite"));
    }
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(data.len(), rollouts.len(), "one datum per rollout");
    seconds
}

fn rollout(group: u64, member: u32) -> Rollout {
    let id = RolloutId { group: GroupId(group), member };
    let tokens = |count: usize| (0..count as Token).map(|n| n % 50_000).collect::<Vec<_>>();
    let logprobs = (0..COMPLETION).map(|n| -0.5 - (n % 7) as f32).collect();
    let turn = Turn {
        prompt: tokens(PROMPT).into(),
        completion: Completion::new(tokens(COMPLETION), logprobs, StopReason::Stop),
        text: String::new(),
        complete: true,
    };
    let item = ItemKey { component: 0, item: group };
    Rollout { turns: vec![turn], ..Rollout::new(id, item, PolicyVersion(0)) }
}
