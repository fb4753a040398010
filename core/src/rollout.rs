//! What a policy sampled: turns of prompt and completion, and the training data made of them.

use crate::chat::Message;
use crate::datum::{Datum, DatumError, LossInputs, Provenance, ProvenanceSpan, SpanSource};
use crate::ids::{ItemKey, PolicyVersion, RolloutId, Token};
use crate::item::Item;
use crate::reward::Score;
use crate::sampling::{Completion, VersionSpan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// One turn: everything the policy read, and the completion it sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// All tokens before the completion.
    pub prompt: Arc<[Token]>,
    /// The tokens that the policy sampled.
    #[serde(rename = "answer")]
    pub completion: Completion,
    /// The completion as text, without its stop.
    pub text: String,
    /// Whether the completion ended with exactly one stop.
    pub complete: bool,
}

/// One sampled trajectory, without its reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Its group and position within the group.
    pub id: RolloutId,
    /// The item that was sampled.
    pub item: ItemKey,
    /// The weights at the time when its first request was sent. None that sampled it are older.
    pub policy: PolicyVersion,
    /// The newest weights that sampled it, as far as is known; `None` where `policy` sampled all of it. Where the service
    /// does not tell the versions of tokens, the newest that were published when the rollout was complete.
    #[serde(default)]
    pub newest: Option<PolicyVersion>,
    /// At least one turn; none if it could not be sampled.
    pub turns: Vec<Turn>,
    /// The conversation before the first completion, where the environment created it during the rollout; empty
    /// where it is the item's prompt.
    #[serde(default)]
    pub opening: Arc<[Message]>,
}

impl Rollout {
    /// A rollout without turns.
    #[must_use]
    pub fn new(id: RolloutId, item: ItemKey, policy: PolicyVersion) -> Self {
        Self { id, item, policy, newest: None, turns: Vec::new(), opening: Arc::default() }
    }

    /// The newest weights that sampled it, as far as is known.
    #[must_use]
    pub fn newest_policy(&self) -> PolicyVersion {
        self.newest.unwrap_or(self.policy)
    }

    /// Notes that its requests followed the weights in training, of which `published` were the newest at its end.
    pub fn followed_weights(&mut self, published: PolicyVersion) {
        let newest = self.told_versions().map_or(published, |told| *told.end());
        self.newest = (newest > self.policy).then_some(newest);
    }

    /// The oldest and the newest weights that sampled it. Where the service does not tell the versions of tokens, those
    /// of its first request and the newest that were published when it was complete.
    #[must_use]
    pub fn versions(&self) -> RangeInclusive<PolicyVersion> {
        self.told_versions().unwrap_or(self.policy..=self.newest_policy())
    }

    /// Whether more than one version of the weights sampled it, as far as is known.
    #[must_use]
    pub fn spans_versions(&self) -> bool {
        let versions = self.versions();
        versions.start() < versions.end()
    }

    /// The oldest and the newest version of its tokens, if the service has told all of them.
    fn told_versions(&self) -> Option<RangeInclusive<PolicyVersion>> {
        let tells = |completion: &Completion| !completion.versions.is_empty() || completion.tokens.is_empty();
        if !self.turns.iter().all(|turn| tells(&turn.completion)) {
            return None;
        }
        let spans = || self.turns.iter().flat_map(|turn| &turn.completion.versions).map(|span| span.version);
        Some(spans().min()?..=spans().max()?)
    }

    /// By version, how many of its tokens the weights sampled; `None` if that is not known.
    #[must_use]
    pub fn tokens_by_version(&self) -> Option<BTreeMap<PolicyVersion, usize>> {
        let mut tokens = BTreeMap::new();
        for Turn { completion, .. } in &self.turns {
            let sampled = completion.tokens.len();
            if sampled == 0 {
                continue;
            }
            if completion.versions.is_empty() && self.newest.is_some() {
                return None;
            }
            let all = [VersionSpan { version: self.policy, tokens: sampled }];
            let spans = if completion.versions.is_empty() { &all[..] } else { &completion.versions };
            for span in spans {
                *tokens.entry(span.version).or_default() += span.tokens;
            }
        }
        Some(tokens)
    }

    /// The conversation before the first completion.
    #[must_use]
    pub fn prompt<'a>(&'a self, item: &'a Item) -> &'a [Message] {
        if self.opening.is_empty() { &item.prompt } else { &self.opening }
    }

    /// Tokens that the policy sampled.
    #[must_use]
    pub fn sampled_tokens(&self) -> usize {
        self.turns.iter().map(|turn| turn.completion.tokens.len()).sum()
    }

    /// Number of tokens in the last prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.turns.last().map_or(0, |turn| turn.prompt.len())
    }

    /// The data for a policy loss: sampled tokens carry their logprob and their advantage, all others zeros. The
    /// advantage is requested by turn and by token of its completion, from 0; a token with `None` is left out of the
    /// loss.
    ///
    /// Turns are merged into one datum as long as each prompt extends everything before it (the extension
    /// property); a turn whose prompt does not extend the history starts a new datum. A datum knows which of its
    /// targets were sampled, and its provenance if the service named all of its samples.
    ///
    /// # Errors
    /// A logprob that is missing or not finite.
    pub fn data(&self, advantage: impl Fn(usize, usize) -> Option<f32>) -> Result<Vec<Datum>, DatumError> {
        let mut data = Vec::new();
        let mut open = Sequence::default();
        for (at, turn) in self.turns.iter().enumerate() {
            if !turn.prompt.starts_with(&open.tokens) {
                data.extend(std::mem::take(&mut open).close()?);
            }
            let name = turn.completion.sequence_id.as_deref();
            open.span(SpanSource::Prompt, name, open.tokens.len(), turn.prompt.len() - open.tokens.len());
            open.observe(&turn.prompt[open.tokens.len()..]);
            open.span(SpanSource::Sample, name, 0, turn.completion.tokens.len());
            open.act(&turn.completion, |token| advantage(at, token))?;
        }
        data.extend(open.close()?);
        Ok(data)
    }
}

/// By turn and token of a completion: its logprob when it was sampled minus the one under the reference. Empty without
/// a reference.
pub type Drift = Vec<Vec<f32>>;

/// A rollout with its reward and its advantage, as a group ready for training holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingRollout {
    /// The sampled turns of the rollout.
    #[serde(rename = "episode")]
    pub rollout: Rollout,
    /// The reward with its metrics.
    pub score: Score,
    /// Its advantage within the group.
    pub advantage: f32,
    /// Drift of each sampled token from the reference.
    #[serde(default)]
    pub drift: Drift,
}

/// Tokens so far, with the logprob and the advantage of each.
#[derive(Default)]
struct Sequence {
    tokens: Vec<Token>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    sampled: Vec<bool>,
    spans: Vec<ProvenanceSpan>,
    /// Whether a sample has no name, so that the spans have a gap.
    nameless: bool,
}

impl Sequence {
    /// Notes where the next `length` tokens come from.
    fn span(&mut self, source: SpanSource, name: Option<&str>, offset: usize, length: usize) {
        match name {
            None => self.nameless = true,
            Some(_) if length == 0 => {}
            Some(name) => {
                self.spans.push(ProvenanceSpan { source, sequence_id: name.into(), offset, length });
            }
        }
    }

    fn observe(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
        self.logprobs.resize(self.tokens.len(), 0.0);
        self.advantages.resize(self.tokens.len(), 0.0);
        self.sampled.resize(self.tokens.len(), false);
    }

    fn act(
        &mut self,
        answer: &Completion,
        advantage: impl Fn(usize) -> Option<f32>,
    ) -> Result<(), DatumError> {
        if answer.logprobs.len() != answer.tokens.len() {
            return Err(DatumError::Length {
                tensor: "logprobs",
                len: answer.logprobs.len(),
                expected: answer.tokens.len(),
            });
        }
        self.tokens.extend_from_slice(&answer.tokens);
        self.logprobs.extend_from_slice(&answer.logprobs);
        for advantage in (0..answer.tokens.len()).map(advantage) {
            self.advantages.push(advantage.unwrap_or(0.0));
            self.sampled.push(advantage.is_some());
        }
        Ok(())
    }

    /// Shifts by one: the input drops the last token, everything that describes a target drops the first.
    fn close(mut self) -> Result<Option<Datum>, DatumError> {
        if self.tokens.len() < 2 {
            return Ok(None);
        }
        let targets = self.tokens.split_off(1);
        let mut input = self.tokens;
        input.extend_from_slice(&targets[..targets.len() - 1]);
        let inputs = LossInputs::Policy {
            logprobs: self.logprobs.split_off(1),
            advantages: self.advantages.split_off(1),
        };
        let datum = Datum::new(input, targets, inputs)?.with_sampled(self.sampled.split_off(1))?;
        if self.nameless {
            return Ok(Some(datum));
        }
        let targets = without_first(self.spans.clone());
        datum.with_provenance(Provenance { input: without_last(self.spans), targets }).map(Some)
    }
}

/// Spans of the same positions without the first.
fn without_first(mut spans: Vec<ProvenanceSpan>) -> Vec<ProvenanceSpan> {
    if let Some(first) = spans.first_mut() {
        first.offset += 1;
        first.length -= 1;
    }
    spans.retain(|span| span.length > 0);
    spans
}

/// Spans of the same positions without the last.
fn without_last(mut spans: Vec<ProvenanceSpan>) -> Vec<ProvenanceSpan> {
    if let Some(last) = spans.last_mut() {
        last.length -= 1;
    }
    spans.retain(|span| span.length > 0);
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::GroupId;
    use crate::sampling::StopReason;

    fn turn(prompt: &[Token], answer: &[Token], logprobs: &[f32]) -> Turn {
        Turn {
            prompt: prompt.into(),
            completion: Completion::new(answer.to_vec(), logprobs.to_vec(), StopReason::Stop),
            text: String::new(),
            complete: true,
        }
    }

    fn rollout(turns: Vec<Turn>) -> Rollout {
        let id = RolloutId { group: GroupId(0), member: 0 };
        let item = ItemKey { component: 0, item: 0 };
        Rollout { turns, ..Rollout::new(id, item, PolicyVersion(0)) }
    }

    /// Sent under version 2 and sampled by version 4 alone, then by 4 and 6.
    #[test]
    fn the_versions_of_a_rollout_are_those_of_its_tokens_where_the_service_tells_them() {
        let span = |version, tokens| VersionSpan { version: PolicyVersion(version), tokens };
        let mut rollout = rollout(vec![turn(&[1], &[2], &[-1.0])]);
        rollout.policy = PolicyVersion(2);
        rollout.followed_weights(PolicyVersion(5));
        assert_eq!(rollout.versions(), PolicyVersion(2)..=PolicyVersion(5));
        assert!(rollout.spans_versions());
        assert_eq!(rollout.tokens_by_version(), None);

        rollout.turns[0].completion.versions = vec![span(4, 1)];
        rollout.followed_weights(PolicyVersion(5));
        assert_eq!(rollout.newest, Some(PolicyVersion(4)));
        assert_eq!(rollout.versions(), PolicyVersion(4)..=PolicyVersion(4));
        assert!(!rollout.spans_versions());

        let mut second = turn(&[1, 2], &[3, 4], &[-1.0, -1.0]);
        second.completion.versions = vec![span(4, 1), span(6, 1)];
        // A completion without tokens has no versions, and nothing is unknown about it.
        rollout.turns.extend([second, turn(&[1, 2, 3, 4], &[], &[])]);
        rollout.followed_weights(PolicyVersion(7));
        assert_eq!(rollout.versions(), PolicyVersion(4)..=PolicyVersion(6));
        let expected = [(PolicyVersion(4), 2), (PolicyVersion(6), 1)];
        assert_eq!(rollout.tokens_by_version(), Some(expected.into()));
    }

    #[test]
    fn every_tensor_describes_the_token_predicted_from_its_position() {
        let data = rollout(vec![turn(&[1, 2], &[3, 4], &[-0.5, -0.25])])
            .data(|_, token| Some(2.0 + token as f32))
            .unwrap();
        assert_eq!(data.len(), 1);
        assert_eq!(data[0].input(), [1, 2, 3]);
        assert_eq!(data[0].targets(), [2, 3, 4]);
        assert_eq!(
            *data[0].inputs(),
            LossInputs::Policy { logprobs: vec![0.0, -0.5, -0.25], advantages: vec![0.0, 2.0, 3.0] }
        );
    }

    #[test]
    fn turns_that_extend_the_history_share_a_datum() {
        let data = rollout(vec![turn(&[1], &[2], &[-1.0]), turn(&[1, 2, 9], &[3], &[-2.0])])
            .data(|turn, _| Some(turn as f32 + 1.0))
            .unwrap();
        assert_eq!(data.len(), 1);
        assert_eq!(data[0].input(), [1, 2, 9]);
        assert_eq!(
            *data[0].inputs(),
            LossInputs::Policy { logprobs: vec![-1.0, 0.0, -2.0], advantages: vec![1.0, 0.0, 2.0] }
        );
    }

    #[test]
    fn a_prompt_that_rewrites_history_starts_a_new_datum() {
        let data = rollout(vec![turn(&[1], &[2], &[-1.0]), turn(&[1, 7], &[3], &[-2.0])])
            .data(|_, _| Some(1.0))
            .unwrap();
        assert_eq!(data.iter().map(|d| d.input().to_vec()).collect::<Vec<_>>(), [vec![1], vec![1, 7]]);
    }

    #[test]
    fn a_sampled_token_without_a_logprob_is_an_error() {
        assert!(rollout(vec![turn(&[1], &[2, 3], &[-1.0])]).data(|_, _| Some(1.0)).is_err());
    }

    /// `P` is a token of a prompt, `S` of a sample: `<kind><sequence>@<offset>+<length>`.
    fn spans(spans: &[ProvenanceSpan]) -> String {
        let span = |span: &ProvenanceSpan| {
            let kind = if span.source == SpanSource::Prompt { 'P' } else { 'S' };
            format!("{kind}{}@{}+{}", span.sequence_id, span.offset, span.length)
        };
        spans.iter().map(span).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_datum_knows_its_sampled_targets_and_which_samples_its_tokens_come_from() {
        let named = |mut turn: Turn, name: &str| {
            turn.completion.sequence_id = Some(name.into());
            turn
        };
        let first = named(turn(&[1, 2], &[3, 4], &[-0.5, -0.25]), "a");
        let second = named(turn(&[1, 2, 3, 4, 5], &[6], &[-1.0]), "b");
        let data = rollout(vec![first.clone(), second.clone()]).data(|_, _| Some(0.0)).unwrap();
        // As tinker-cookbook 0.6.1 has it (`trajectory_to_data`) for these two turns.
        let provenance = data[0].provenance().unwrap();
        assert_eq!(spans(&provenance.input), "Pa@0+2 Sa@0+2 Pb@4+1");
        assert_eq!(spans(&provenance.targets), "Pa@1+1 Sa@0+2 Pb@4+1 Sb@0+1");
        let sampled: Vec<bool> = (0..data[0].len()).map(|t| data[0].is_sampled(t)).collect();
        assert_eq!(sampled, [false, true, true, false, true]);
        let without_4 = |_, token| (token != 1).then_some(1.0);
        let data = rollout(vec![first.clone()]).data(without_4).unwrap();
        assert_eq!((data[0].is_sampled(1), data[0].is_sampled(2)), (true, false));
        // One sample without a name leaves the datum without provenance.
        let mut nameless = second;
        nameless.completion.sequence_id = None;
        assert_eq!(rollout(vec![first, nameless]).data(|_, _| Some(0.0)).unwrap()[0].provenance(), None);
    }
}
