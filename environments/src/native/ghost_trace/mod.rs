//! Stand for a word with five numbers, so that a listener who reads them expects the word.
//!
//! The answer is exactly five whole numbers from 0 to 999. The listener, as chat, gets the numbers and nothing else:
//! they are written again from the parsed values, so no other character of the answer reaches it. With `lp` the mean
//! logprob per token of the word,
//!
//! `gain = lp(answer) - mean of lp over four fixed sequences`
//!
//! `reward = gain, cut off at -bound and +bound`; an answer that is not five such numbers gets `-bound - 0.1`.
//!
//! The fixed sequences take out how likely the word is by itself, which differs by nats from word to word while
//! sequences differ by tenths. Any numbers make a word less likely than none; the reference is therefore other numbers.
//! The penalty lies just under the worst valid reward, however the bound is chosen: far above it a policy would choose
//! to be invalid, and far below it only the format would be trained. The query depends on word and numbers
//! alone, so members of a group that name the same numbers share an answer.

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use crate::parse::whole_numbers;
use async_trait::async_trait;
use futures::future::{try_join, try_join_all};
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "ghost_trace";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "stand for a word with five numbers that let a listener expect it",
    args: ARGS,
    queries_model: true,
    load,
};

arguments! {
    GhostTraceOptions {
        split: WordSplit = Choice(&["train", "held_out"]),
            "the words to train with, or the 300 that are kept for evaluation";
        shots: usize = Whole { default: 3, min: 0, max: 3 },
            "examples before the question; without any, hardly any answer is valid";
        bound: f64 = Number { default: 0.9, min: 0.1, max: 20.0 },
            "largest size of a valid reward, nats per token; an invalid answer earns 0.1 less than the worst";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WordSplit {
    Train,
    HeldOut,
}

/// Concepts to train with, and others that are kept for evaluation. Written for this project: nouns in lower case.
const TRAIN: &str = include_str!("words.txt");
const HELD_OUT: &str = include_str!("held_out.txt");

/// The five numbers that stand for a word.
type NumberSequence = [u32; 5];

const SYSTEM: &str = "You describe a word with five whole numbers from 0 to 999, so that a reader can guess the word. \
                      Reply with the five numbers only.";

const LISTENER: &str = "You guess the word that five numbers stand for. Reply with the word only.";

/// Examples, whose words are in neither list.
const EXAMPLES: [(&str, NumberSequence); 3] =
    [("sun", [310, 4, 778, 100, 52]), ("chair", [85, 612, 9, 247, 930]), ("music", [7, 503, 441, 66, 218])];

/// Sequences that say nothing about any word.
const REFERENCE: [NumberSequence; 4] =
    [[500; 5], [12, 340, 7, 88, 601], [903, 45, 222, 610, 31], [64, 150, 871, 9, 430]];

fn load(given: &Map<String, Value>, _seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: GhostTraceOptions = args::read(ID, ARGS, given)?;
    let words: Vec<&str> = match options.split {
        WordSplit::Train => TRAIN,
        WordSplit::HeldOut => HELD_OUT,
    }
    .split_whitespace()
    .collect();
    let items = NonZeroU64::new(words.len() as u64)
        .ok_or_else(|| EnvError::Data { env: ID, why: "there are no words".into() })?;
    Ok(Arc::new(GhostTrace { options, words, items }))
}

struct GhostTrace {
    options: GhostTraceOptions,
    words: Vec<&'static str>,
    items: NonZeroU64,
}

fn format_numbers(sequence: NumberSequence) -> String {
    sequence.map(|number| number.to_string()).join(", ")
}

/// Mean logprob per token of the word, for a listener who is given the numbers.
async fn word_logprob(
    scene: &ScoringContext<'_>,
    word: &str,
    sequence: NumberSequence,
) -> Result<f64, RewardError> {
    let told = [Message::system(LISTENER), Message::user(format!("Numbers: {}", format_numbers(sequence)))];
    let (sum, tokens) = scene.answer_logprob(&told, word).await?;
    Ok(sum / tokens as f64)
}

#[async_trait]
impl Environment for GhostTrace {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.items
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items;
        let question = |word: &str| Message::user(format!("Word: {word}"));
        let mut prompt = vec![Message::system(SYSTEM)];
        for (word, sequence) in EXAMPLES.into_iter().take(self.options.shots) {
            prompt.extend([question(word), Message::assistant(format_numbers(sequence))]);
        }
        let word = self.words[index as usize];
        prompt.push(question(word));
        Item { index, prompt, answer: None, info: json!({ "word": word }) }
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        whole_numbers::<5>(answer, 0..=999).map(|sequence| json!(sequence))
    }

    /// Queries the reference even if the answer is invalid: a service that fails must not take the valid
    /// rollouts out of a group and leave the others.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let word = self.words[(scene.item.index % self.items) as usize];
        let sequence = whole_answer(&scene).and_then(|text| whole_numbers(text, 0..=999));
        let reference = try_join_all(REFERENCE.map(|sequence| word_logprob(&scene, word, sequence)));
        let own = async {
            match sequence {
                Some(sequence) => word_logprob(&scene, word, sequence).await.map(Some),
                None => Ok(None),
            }
        };
        let (reference, own) = try_join(reference, own).await?;
        let reference = reference.iter().sum::<f64>() / reference.len() as f64;
        if !(reference.is_finite() && own.is_none_or(f64::is_finite)) {
            let why = format!("the logprob of a word is {own:?}, that of the reference {reference}");
            return Err(RewardError::NotFinite(why));
        }
        let mut metrics =
            Metrics::from([("valid".into(), flag(own.is_some())), ("reference_logprob".into(), reference)]);
        let mut reward = -self.options.bound - 0.1;
        if let Some(logprob) = own {
            let gain = logprob - reference;
            metrics.insert("logprob".into(), logprob);
            metrics.insert("gain".into(), gain);
            reward = gain.clamp(-self.options.bound, self.options.bound);
        }
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn words_are_nouns_in_lower_case_and_in_one_list_only() {
        let words: Vec<&str> = TRAIN.split_whitespace().chain(HELD_OUT.split_whitespace()).collect();
        let distinct: BTreeSet<&str> = words.iter().copied().chain(EXAMPLES.map(|(word, _)| word)).collect();
        assert_eq!(distinct.len(), words.len() + EXAMPLES.len());
        assert!(words.iter().all(|word| word.bytes().all(|b| b.is_ascii_lowercase())));
        assert!(words.len() >= 1500 && HELD_OUT.split_whitespace().count() == 300);
    }
}
