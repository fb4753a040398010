//! The groups of the latest steps, for inspection one by one.

use crate::text_stream::TextStream;
use minds_core::chat::{Message, Tokenizer};
use minds_core::ids::Token;
use minds_stages::messages::{Group, TrainingGroup, TrainingRollout};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of groups kept.
const MOST: usize = 300;
/// Maximum number of tokens of all kept groups, prompts included: a token takes eight bytes, and some four more as text.
const MOST_TOKENS: usize = 2_000_000;
/// Maximum number of tokens of a completion that are shown one by one.
const MOST_SHOWN: usize = 4096;
/// Maximum number of characters of a prompt in the list.
const MOST_PROMPT: usize = 160;

/// The newest groups, within the limits on groups and tokens.
#[derive(Default)]
pub(super) struct RecentGroups {
    groups: VecDeque<Arc<RecentGroup>>,
    tokens: usize,
}

/// A group that was trained.
pub(super) struct RecentGroup {
    step: u64,
    at: f64,
    group: Arc<Group>,
    members: Arc<[TrainingRollout]>,
    missing: u32,
    constant: bool,
    staleness: u64,
    /// Staleness of the newest weights that sampled one of its rollouts.
    staleness_newest: u64,
    tokens: usize,
}

impl RecentGroups {
    pub(super) fn push(&mut self, step: u64, at: f64, group: TrainingGroup) {
        let TrainingGroup { group, members, missing, constant, oldest, .. } = group;
        let tokens = members.iter().map(|m| m.rollout.prompt_tokens() + m.rollout.sampled_tokens()).sum();
        let staleness = (step - 1).saturating_sub(oldest.0);
        let newest = members.iter().map(|member| member.rollout.newest_policy()).max().unwrap_or(oldest);
        let staleness_newest = (step - 1).saturating_sub(newest.0);
        self.tokens += tokens;
        self.groups.push_front(Arc::new(RecentGroup {
            step,
            at,
            group,
            members,
            missing,
            constant,
            staleness,
            staleness_newest,
            tokens,
        }));
        while self.groups.len() > MOST || (self.tokens > MOST_TOKENS && self.groups.len() > 1) {
            self.tokens -= self.groups.pop_back().map_or(0, |old| old.tokens);
        }
    }

    /// Groups of one environment, or all groups, newest first.
    pub(super) fn list(&self, environment: Option<&str>) -> Vec<Arc<RecentGroup>> {
        let wanted =
            |kept: &&Arc<RecentGroup>| environment.is_none_or(|name| kept.group.component.name == name);
        self.groups.iter().filter(wanted).cloned().collect()
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<RecentGroup>> {
        self.groups.iter().find(|kept| kept.group.id.0 == id).cloned()
    }
}

impl RecentGroup {
    /// Prompt of the group: its rollouts share one item.
    fn prompt(&self) -> &[Message] {
        let item = &self.group.item;
        self.members.first().map_or(&item.prompt[..], |member| member.rollout.prompt(item))
    }

    /// Summary of the group as JSON, for the list.
    pub(super) fn summary(&self) -> Value {
        let rewards = || self.members.iter().map(|m| f64::from(m.score.reward.get()));
        let prompt = self.prompt().last().map_or("", |message| &message.content);
        let mut short: String = prompt.chars().take(MOST_PROMPT).collect();
        if short.len() < prompt.len() {
            short.push('…');
        }
        json!({
            "id": self.group.id.0.to_string(),
            "step": self.step,
            "environment": self.group.component.name,
            "item": self.group.key.item,
            "at": self.at,
            "members": self.members.len(),
            "missing": self.missing,
            "reward_mean": rewards().sum::<f64>() / self.members.len() as f64,
            "reward_min": rewards().fold(f64::INFINITY, f64::min),
            "reward_max": rewards().fold(f64::NEG_INFINITY, f64::max),
            "constant": self.constant,
            "staleness": self.staleness,
            "staleness_newest": self.staleness_newest,
            "prompt": short,
        })
    }

    /// Summary of the group with its whole prompt, and with its rollouts in place of their number.
    pub(super) fn whole(&self, tokenizer: &dyn Tokenizer) -> Value {
        let members = self.members.iter().map(|TrainingRollout { rollout, score, advantage, .. }| {
            let turns = rollout.turns.iter().map(|turn| {
                let shown = turn.completion.tokens.len().min(MOST_SHOWN);
                let pieces = pieces(tokenizer, &turn.completion.tokens[..shown]);
                let tokens: Vec<_> = pieces.into_iter().zip(&turn.completion.logprobs).collect();
                json!({
                    "text": turn.text,
                    "complete": turn.complete,
                    "tokens": tokens,
                    "cut": turn.completion.tokens.len() - shown,
                })
            });
            json!({
                "member": rollout.id.member,
                "policy": rollout.policy.0,
                "newest_policy": rollout.newest_policy().0,
                "reward": score.reward.get(),
                "advantage": advantage,
                "metrics": score.metrics,
                "turns": turns.collect::<Vec<_>>(),
            })
        });
        let members: Vec<Value> = members.collect();
        let mut whole = self.summary();
        whole["prompt"] = json!(self.prompt());
        whole["members"] = json!(members);
        whole
    }
}

/// Text of each token. A character that several tokens encode is attributed to the last of them.
fn pieces(tokenizer: &dyn Tokenizer, tokens: &[Token]) -> Vec<String> {
    let mut stream = TextStream::default();
    let mut pieces: Vec<String> = tokens.iter().map(|token| stream.push(tokenizer, *token)).collect();
    if let Some(last) = pieces.last_mut() {
        last.push_str(&stream.finish(tokenizer));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_models::ByteTokenizer;

    #[test]
    fn a_character_of_several_tokens_stands_at_its_last_one() {
        let tokenizer = ByteTokenizer;
        let tokens = tokenizer.encode("aé→b");
        assert_eq!(pieces(&tokenizer, &tokens), ["a", "", "é", "", "", "→", "b"]);
        // The arrow's first byte alone, before a letter and at the end.
        let broken = tokenizer.encode("→")[0];
        let letter = tokenizer.encode("b")[0];
        assert_eq!(pieces(&tokenizer, &[broken, letter, broken]), ["", "\u{fffd}b", "\u{fffd}"]);
    }
}
