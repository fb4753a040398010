//! Rollouts as the page shows them: cut to a readable length, with the metrics of their rewards.

use super::curves::MOST_ENVIRONMENTS;
use super::numbers::{count, several, show};
use super::source::ChosenRollouts;
use super::text::{TextPiece, cut};
use super::tokens::{self, TokenSpan};
use minds_core::chat::Tokenizer;
use minds_core::record::{RolloutRow, TurnRow};
use serde::Serialize;

/// Maximum characters shown of a completion.
pub const ANSWER: usize = 3000;
/// Maximum characters shown of a message of the prompt.
const MESSAGE: usize = 1500;
/// Maximum number of messages of a prompt, and of turns of a rollout, that are shown.
pub const MESSAGES: usize = 12;
/// Maximum number of metrics of a reward that are shown.
const NUMBERS: usize = 60;
/// Maximum characters shown of a name or a cause.
pub const NAME: usize = 300;

/// Chosen rollouts of one environment.
#[derive(Serialize)]
pub struct EnvironmentCards {
    name: String,
    kinds: Vec<(&'static str, Vec<RolloutCard>)>,
}

/// A rollout as the page shows it.
#[derive(Serialize)]
struct RolloutCard {
    step: String,
    group: u64,
    member: u32,
    item: u64,
    age: String,
    reward: String,
    advantage: String,
    numbers: Vec<(Vec<TextPiece>, String)>,
    more_numbers: usize,
    prompt: Vec<MessageCard>,
    more_messages: usize,
    turns: Vec<TurnCard>,
    more_turns: usize,
}

#[derive(Serialize)]
struct MessageCard {
    role: &'static str,
    text: Vec<TextPiece>,
}

#[derive(Serialize)]
struct TurnCard {
    /// Text of the completion, without token shades.
    text: Vec<TextPiece>,
    /// Shown instead of the text if the tokenizer matches.
    shaded: Option<Vec<TokenSpan>>,
    /// Shown beside the text if it does not match.
    strip: Vec<TokenSpan>,
    tokens: String,
    prompt_tokens: String,
    complete: bool,
}

/// Cards for the chosen rollouts of each environment.
pub fn environments(chosen: &ChosenRollouts, tokenizer: Option<&dyn Tokenizer>) -> Vec<EnvironmentCards> {
    let shown = chosen.environments.iter().take(MOST_ENVIRONMENTS).map(|(name, kinds)| {
        let kinds = [
            ("Best", &kinds.best),
            ("Worst", &kinds.worst),
            ("At random, first steps", &kinds.early),
            ("At random, last steps", &kinds.late),
        ];
        let kinds = kinds.into_iter().filter(|(_, rollouts)| !rollouts.is_empty());
        let cards =
            |rollouts: &[RolloutRow<'_>]| rollouts.iter().map(|rollout| card(rollout, tokenizer)).collect();
        EnvironmentCards {
            name: name.clone(),
            kinds: kinds.map(|(title, rollouts)| (title, cards(rollouts))).collect(),
        }
    });
    shown.collect()
}

fn card(rollout: &RolloutRow<'_>, tokenizer: Option<&dyn Tokenizer>) -> RolloutCard {
    let numbers = rollout.metrics.iter().take(NUMBERS).map(|(name, value)| (cut(name, NAME), show(*value)));
    // The first message states the task, the last ones the question.
    let skipped = rollout.prompt.len().saturating_sub(MESSAGES);
    let messages = rollout.prompt.iter().enumerate().filter(|(n, _)| *n == 0 || *n > skipped);
    let messages =
        messages.map(|(_, said)| MessageCard { role: said.role.name(), text: cut(&said.content, MESSAGE) });
    RolloutCard {
        step: count(rollout.step),
        group: rollout.group,
        member: rollout.member,
        item: rollout.item,
        age: several(rollout.step.saturating_sub(1).saturating_sub(rollout.policy), "step"),
        reward: show(f64::from(rollout.reward)),
        advantage: show(f64::from(rollout.advantage)),
        numbers: numbers.collect(),
        more_numbers: rollout.metrics.len().saturating_sub(NUMBERS),
        prompt: messages.collect(),
        more_messages: skipped,
        turns: rollout.turns.iter().take(MESSAGES).map(|answer| turn(answer, tokenizer)).collect(),
        more_turns: rollout.turns.len().saturating_sub(MESSAGES),
    }
}

fn turn(turn: &TurnRow<'_>, tokenizer: Option<&dyn Tokenizer>) -> TurnCard {
    let shaded = tokenizer.and_then(|t| tokens::shaded(t, &turn.text, &turn.tokens, &turn.logprobs));
    let strip = if shaded.is_some() { Vec::new() } else { tokens::strip(&turn.logprobs) };
    TurnCard {
        text: cut(&turn.text, ANSWER),
        shaded,
        strip,
        tokens: count(turn.tokens.len() as u64),
        prompt_tokens: count(turn.prompt_tokens as u64),
        complete: turn.complete,
    }
}
