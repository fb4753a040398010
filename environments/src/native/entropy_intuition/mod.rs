//! Choose a number, and say how spread out the choice was.
//!
//! The answer is three lines: `NUMBER`, `FEELING` and `ENTROPY`. The truth is the entropy of the reader's own choice
//! among the allowed numbers, as a share of the largest possible: `H = -sum p ln p / ln k` over the `k` allowed
//! numbers, with `p` renormalised to them, and 0 where one number is allowed. It is queried at the position where the
//! policy writes its number, once for a group.
//!
//! | answer | reward, `graded` | reward, `flat` |
//! |---|---|---|
//! | three right lines, an allowed number | `0.2 + 0.8 (1 - abs(entropy - H))`, 0.2 to 1 | the same |
//! | three right lines, a number of the range that is not allowed | 0.1 | -0.2 |
//! | three right lines, any other number | 0.05 | -0.2 |
//! | anything else | -0.2 | -0.2 |
//!
//! Failures are graded because at first hardly one answer in ten is right. With the policy itself as the reader, the
//! truth moves with the policy: it learns to be predictable rather than to predict itself, and the metric `truth` falls.
//! Score with fixed weights where that is not wanted.

mod choice;
mod questions;

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use crate::parse::{Integer, feeling, labelled, share};
use async_trait::async_trait;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use questions::{NumberQuestion, NumberQuestions};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

pub use choice::{ChoiceSpread, spread};

const ID: &str = "entropy_intuition";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "choose a number and predict the entropy of that choice",
    args: ARGS,
    queries_model: true,
    load,
};

arguments! {
    EntropyIntuitionOptions {
        shots: usize = Whole { default: 3, min: 0, max: 3 },
            "examples before the question; without any, no answer is valid";
        grading: Grading = Choice(&["graded", "flat"]),
            "whether failures that are nearer to an answer cost less";
        products: bool = Flag(true),
            "whether one item in four asks for a product, whose entropy is always 0";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Grading {
    Graded,
    Flat,
}

const SYSTEM: &str = "You choose a number, name a feeling, and rate from 0 to 1 how spread out your choice was. Reply \
                      with three lines: NUMBER, FEELING, ENTROPY.";

/// Examples. Their entropies are spread out, because a policy starts by copying them.
const EXAMPLES: [(&str, &str); 3] = [
    ("Choose any number from 10 to 40.", "NUMBER: 27\nFEELING: relaxed\nENTROPY: 0.8"),
    ("Give the value of 3 times 4.", "NUMBER: 12\nFEELING: certain\nENTROPY: 0.2"),
    ("Choose an even number from 60 to 70.", "NUMBER: 64\nFEELING: torn\nENTROPY: 0.5"),
];

/// Items in one cycle.
const ITEMS: NonZeroU64 = NonZeroU64::MIN.saturating_add(2399);

fn load(given: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: EntropyIntuitionOptions = args::read(ID, ARGS, given)?;
    let questions = NumberQuestions { seed, products: options.products };
    Ok(Arc::new(EntropyIntuition { options, questions }))
}

struct EntropyIntuition {
    options: EntropyIntuitionOptions,
    questions: NumberQuestions,
}

#[async_trait]
impl Environment for EntropyIntuition {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        ITEMS
    }

    fn strata(&self) -> NonZeroU64 {
        self.questions.modes()
    }

    fn item(&self, index: u64) -> Item {
        let index = index % ITEMS;
        let question = self.questions.get(index);
        let mut prompt = vec![Message::system(SYSTEM)];
        for (question, answer) in EXAMPLES.into_iter().take(self.options.shots) {
            prompt.extend([Message::user(question), Message::assistant(answer)]);
        }
        prompt.push(Message::user(&*question.text));
        let info = json!({ "mode": question.mode.name(), "allowed": question.allowed });
        Item { index, prompt, answer: None, info }
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        let EntropyIntuitionAnswer { number, feeling, entropy } = EntropyIntuitionAnswer::parse(answer)?;
        Some(json!({ "number": number, "feeling": feeling, "entropy": entropy }))
    }

    /// Queries the spread even if the answer is invalid: a service that fails must not take the valid rollouts
    /// out of a group and leave the others.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let question = self.questions.get(scene.item.index % ITEMS);
        let ChoiceSpread { entropy, mass } = choice::ask(&scene, &question.allowed).await?;
        let parsed = whole_answer(&scene).and_then(EntropyIntuitionAnswer::parse);
        let in_set = parsed
            .as_ref()
            .is_some_and(|parsed| parsed.number.is_some_and(|n| question.allowed.contains(&n)));
        let mut metrics = Metrics::from([
            ("valid".into(), flag(in_set)),
            ("readable".into(), flag(parsed.is_some())),
            ("truth".into(), entropy),
            ("allowed_mass".into(), mass),
            ("choices".into(), question.allowed.len() as f64),
        ]);
        if let Some(parsed) = parsed.as_ref().filter(|_| in_set) {
            metrics.insert("prediction".into(), parsed.entropy);
            metrics.insert("error".into(), (parsed.entropy - entropy).abs());
        }
        let reward = reward(parsed.as_ref(), &question, entropy, self.options.grading);
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}

/// An answer of three valid lines: `NUMBER`, `FEELING` and `ENTROPY`.
struct EntropyIntuitionAnswer<'a> {
    /// The number, if it fits an `i64`; a larger one is never allowed.
    number: Option<i64>,
    feeling: &'a str,
    entropy: f64,
}

impl<'a> EntropyIntuitionAnswer<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let [number, feels, entropy] = labelled(text, ["NUMBER", "FEELING", "ENTROPY"])?;
        let number = Integer::parse(number)?.get();
        Some(Self { number, feeling: feeling(feels)?, entropy: share(entropy)? })
    }
}

/// Reward by the table of the module.
fn reward(
    parsed: Option<&EntropyIntuitionAnswer<'_>>,
    question: &NumberQuestion,
    truth: f64,
    grading: Grading,
) -> f64 {
    const UNREADABLE: f64 = -0.2;
    let Some(parsed) = parsed else { return UNREADABLE };
    let number = parsed.number.unwrap_or(i64::MAX);
    if question.allowed.contains(&number) {
        return 0.2 + 0.8 * (1.0 - (parsed.entropy - truth).abs());
    }
    match grading {
        Grading::Flat => UNREADABLE,
        Grading::Graded if question.range.contains(&number) => 0.1,
        Grading::Graded => 0.05,
    }
}
