//! Predict what a lesson does to a reader: how much more it expects an answer, or which answers it changes most.
//!
//! The reader is the model itself, or whichever weights the run names for scoring. It is asked twice: the probe alone
//! (prior), and the probe after the lesson as an earlier exchange (posterior), both as chat. What is asked depends on
//! the item alone, never on the policy's answer, so all members of a group ask the same questions.
//!
//! | task | answer | truth | reward | invalid |
//! |---|---|---|---|---|
//! | `in_context` | `[number]` | change of the target's logprob | `1 / (1 + (error / width)^2)`, in (0, 1] | 0 |
//! | `surprise` | `[order of the probes]` | order by KL(posterior ∥ prior) of the first token | Spearman, in [-1, 1] | -1 |
//!
//! A query that fails makes a reward error; it is never left out, nor replaced by a number.

mod in_context;
mod lesson_bank;
mod ranking;
mod reward;
mod surprise;

pub use ranking::{divergence, spearman};
pub use reward::{BestConstant, RewardForm, best_constant};

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::EnvInfo;
use in_context::InContextTask;
use lesson_bank::{Lesson, LessonBank, LessonProbe};
use minds_core::chat::Message;
use minds_core::environment::Environment;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use surprise::SurpriseTask;

const ID: &str = "gradient_prophet";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "predict what a lesson does to the logprobs of the model's own answers",
    args: ARGS,
    queries_model: true,
    load,
};

arguments! {
    GradientProphetOptions {
        task: ProphetTask = Choice(&["in_context", "surprise"]),
            "in_context: predict one change of logprob; surprise: order the probes of a lesson";
        shots: usize = Whole { default: 3, min: 0, max: 4 },
            "examples before the question; without any, hardly any answer is valid";
        reward_form: RewardForm = Choice(&["per_token", "sum", "log"]), only with task = "in_context",
            "the change per token, of the whole target, or of the whole target with errors on a log scale";
        width: f64 = Number { default: 1.0, min: 0.05, max: 50.0 }, only with task = "in_context",
            "the error that is worth half the reward";
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProphetTask {
    InContext,
    Surprise,
}

fn load(given: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: GradientProphetOptions = args::read(ID, ARGS, given)?;
    let bank = LessonBank::builtin(seed)?;
    Ok(match options.task {
        ProphetTask::InContext => {
            Arc::new(InContextTask::new(bank, options.shots, options.reward_form, options.width)?)
        }
        ProphetTask::Surprise => Arc::new(SurpriseTask::new(bank, options.shots)?),
    })
}

/// The prompt without the lesson.
fn prior(probe: &LessonProbe) -> [Message; 1] {
    [Message::user(&*probe.question)]
}

/// The prompt after the lesson.
fn posterior(lesson: &Lesson, probe: &LessonProbe) -> [Message; 3] {
    [Message::user(&*lesson.question), Message::assistant(&*lesson.answer), Message::user(&*probe.question)]
}

/// An item that names no lesson: its index does not come from this environment.
fn no_such_item(index: u64) -> minds_core::reward::RewardError {
    minds_core::reward::RewardError::Environment(format!("{ID} has no item {index}"))
}
