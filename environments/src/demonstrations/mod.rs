//! Conversations to imitate, from a data file: what a supervised run learns from.
//!
//! A set is an environment whose items are imitated. The same set measures what is held out: it asks the weights for
//! the logprobs of its turns, and the reward of an item is their mean per token.

mod conversation;

use crate::rows::{self, DataRow};
use async_trait::async_trait;
use conversation::{Conversation, TurnForm};
use minds_core::chat::{Message, Renderer};
use minds_core::demonstration::{DemonstrationError, Demonstrations, ImitatedTurn};
use minds_core::environment::{
    Environment, Item, RolloutSession, ScoringContext, SelfDrivenEnvironment, SessionError, SessionRollout,
};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::rollout::Turn;
use minds_core::sampling::{Completion, StopReason};
use minds_core::service::{BackendError, SamplingBackend};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::num::NonZeroU64;
use std::sync::Arc;
use thiserror::Error;

/// Which turns of a conversation are imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainedTurns {
    /// The last turn of the assistant.
    #[default]
    LastAssistant,
    /// All turns of the assistant.
    AllAssistant,
    /// All turns of the assistant in the `completion` of a row.
    Completion,
}

/// Which rows of a file belong to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemonstrationSplit {
    /// Those that are trained.
    Train,
    /// Those that are held out.
    HeldOut,
}

/// A file of conversations, and how they are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DemonstrationOptions {
    /// The file, with one row per conversation.
    pub data: String,
    /// Which turns are imitated.
    pub train_on: TrainedTurns,
    /// Share of the rows that is held out, in `[0, 1)`, and at least one of several rows unless it is 0. Rows are chosen by
    /// their content alone.
    pub held_out: f64,
}

/// A file of conversations that cannot be used; the message names the file, and the line of a wrong row.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct DemonstrationFileError(String);

/// The conversations of one part of a file.
pub struct DemonstrationSet {
    id: &'static str,
    conversations: Vec<Conversation>,
    items: NonZeroU64,
    /// Set if the set measures weights.
    reader: Option<ConversationReader>,
}

/// How the model reads conversations.
struct ConversationReader {
    renderer: Arc<dyn Renderer>,
    context: usize,
}

impl DemonstrationSet {
    /// Reads a file: JSON Lines, also compressed with zstd, or Parquet. A row has `messages`, or `prompt` and `completion`. All rows are
    /// checked.
    ///
    /// # Errors
    /// The file cannot be read, a row is wrong, or no row is left.
    pub fn open(
        options: &DemonstrationOptions,
        split: DemonstrationSplit,
    ) -> Result<Self, DemonstrationFileError> {
        let all = rows::read(&options.data).map_err(DemonstrationFileError)?;
        let count = all.len();
        let held_out = held_out(&all, options.held_out);
        let conversations = all
            .into_iter()
            .zip(held_out)
            .filter(|(_, held_out)| *held_out == (split == DemonstrationSplit::HeldOut))
            .map(|(row, _)| {
                let place = row.place.to_string();
                Conversation::of(row, options.train_on)
                    .map_err(|why| DemonstrationFileError(format!("{place}: {why}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let Some(items) = NonZeroU64::new(conversations.len() as u64) else {
            return Err(DemonstrationFileError(format!(
                "of the {count} rows of {}, {}",
                options.data,
                match split {
                    DemonstrationSplit::Train => "all are held out: lower sft.held_out",
                    DemonstrationSplit::HeldOut => "none is held out: set sft.held_out to 0",
                }
            )));
        };
        let id = match split {
            DemonstrationSplit::Train => "sft",
            DemonstrationSplit::HeldOut => "sft_held_out",
        };
        Ok(Self { id, conversations, items, reader: None })
    }

    /// The same set, which can also measure weights of a model that reads `context` tokens of this renderer.
    #[must_use]
    pub fn measuring(self, renderer: Arc<dyn Renderer>, context: usize) -> Self {
        Self { reader: Some(ConversationReader { renderer, context }), ..self }
    }

    fn conversation(&self, item: &Item) -> &Conversation {
        &self.conversations[(item.index % self.items) as usize]
    }
}

/// Of each row, whether it is held out: by its content alone, or of few rows the one that would be held out first.
fn held_out(rows: &[DataRow], share: f64) -> Vec<bool> {
    let places: Vec<f64> = rows.iter().map(|row| rows::place(&row.columns)).collect();
    let first = places.iter().copied().fold(f64::INFINITY, f64::min);
    let is_held_out = |place: &f64| *place < share || (share > 0.0 && rows.len() > 1 && *place == first);
    places.iter().map(is_held_out).collect()
}

/// All messages of a file of conversations, in their order: examples for a model to read.
///
/// # Errors
/// The file cannot be read, a row is wrong, or one has tools or thoughts.
pub fn example_messages(data: &str) -> Result<Vec<Message>, DemonstrationFileError> {
    let rows = rows::read(data).map_err(DemonstrationFileError)?;
    let mut messages = Vec::new();
    for row in rows {
        let place = row.place.to_string();
        let wrong = |why: String| DemonstrationFileError(format!("{place}: {why}"));
        let conversation = Conversation::of(row, TrainedTurns::LastAssistant).map_err(wrong)?;
        let own = conversation.plain_messages().ok_or_else(|| {
            DemonstrationFileError(format!("{place}: an example has neither tools nor thoughts"))
        })?;
        messages.extend(own);
    }
    Ok(messages)
}

impl Demonstrations for DemonstrationSet {
    fn turns(
        &self,
        item: &Item,
        renderer: &dyn Renderer,
        context: usize,
    ) -> Result<Vec<ImitatedTurn>, DemonstrationError> {
        let conversation = self.conversation(item);
        let place = || conversation.place.to_string();
        let turns = conversation.turns(renderer).map_err(|error| match error {
            TurnForm::Prompt(source) => DemonstrationError::Prompt { place: place(), source },
            TurnForm::Unlike(why) => DemonstrationError::Form { place: place(), why },
        })?;
        let tokens = turns.iter().map(|turn| turn.prompt.len() + turn.completion.len()).max().unwrap_or(0);
        if tokens > context {
            return Err(DemonstrationError::Length { place: place(), tokens, context });
        }
        Ok(turns)
    }
}

#[async_trait]
impl Environment for DemonstrationSet {
    fn id(&self) -> &str {
        self.id
    }

    fn items(&self) -> NonZeroU64 {
        self.items
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items;
        let conversation = &self.conversations[index as usize];
        Item {
            index,
            prompt: conversation.opening(),
            answer: None,
            info: Value::Object(conversation.columns.clone()),
        }
    }

    fn queries_policy(&self) -> bool {
        false
    }

    fn demonstrations(&self) -> Option<&dyn Demonstrations> {
        Some(self)
    }

    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        self.reader.is_some().then_some(self as &dyn SelfDrivenEnvironment)
    }

    async fn score(&self, _context: ScoringContext<'_>) -> Result<Score, RewardError> {
        Err(RewardError::Unsupported("a reward for sampled turns".into()))
    }
}

/// Measures the weights of each session on the turns of the item: nothing is sampled.
#[async_trait]
impl SelfDrivenEnvironment for DemonstrationSet {
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>) {
        for session in sessions {
            let Some(reader) = &self.reader else { return };
            let sampler = session.sampler.clone();
            let measured = self.measure(item, reader, &*sampler).await;
            session.finish(measured);
        }
    }
}

impl DemonstrationSet {
    async fn measure(
        &self,
        item: &Item,
        reader: &ConversationReader,
        sampler: &dyn SamplingBackend,
    ) -> Result<SessionRollout, SessionError> {
        let broken = |error: DemonstrationError| RewardError::Environment(error.to_string());
        let turns = self.turns(item, &*reader.renderer, reader.context).map_err(broken)?;
        let mut measured = Vec::new();
        for ImitatedTurn { prompt, completion } in turns {
            let tokens = [&prompt[..], &completion].concat();
            let known =
                sampler.logprobs_from(tokens.into(), prompt.len()).await.map_err(RewardError::from)?;
            let logprobs: Option<Vec<f32>> = known[prompt.len()..].iter().copied().collect();
            let missing = || BackendError::Unavailable("logprobs of imitated tokens are missing".into());
            let logprobs = logprobs.ok_or_else(|| RewardError::from(missing()))?;
            let text = reader.renderer.text(&completion);
            let completion = Completion::new(completion, logprobs, StopReason::Stop);
            measured.push(Turn { prompt: prompt.into(), completion, text, complete: true });
        }
        let logprobs = || measured.iter().flat_map(|turn| &turn.completion.logprobs);
        let tokens = logprobs().count();
        let mean = logprobs().map(|logprob| f64::from(*logprob)).sum::<f64>() / tokens.max(1) as f64;
        let metrics = Metrics::from([("nll".into(), -mean), ("tokens".into(), tokens as f64)]);
        let score = Score { reward: Reward::new(mean as f32).map_err(RewardError::from)?, metrics };
        Ok(SessionRollout { turns: measured, opening: item.prompt.clone().into(), score })
    }
}

#[cfg(test)]
mod tests;
