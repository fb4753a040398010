//! Name a number near a target, as a JSON array: the smallest task that shows whether a run learns at all.
//!
//! The target is either hidden and fixed (`json_hidden`: the policy has to find it by trial) or shown and different
//! from item to item (`json_target`: the policy has to copy it). The reward needs no model:
//! `0.2 format + 0.8 / (1 + ((x - target) / 1.5)^2)`, 0 for an answer that is not an array of one number. Every valid
//! reward is above 0.2. A policy that learns gets from 0.4 to 1.0 within 60 steps of 16 rollouts.

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use crate::parse::lone_number;
use async_trait::async_trait;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "target_number";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "name a number near a target, as a JSON array; rewards need no model",
    args: ARGS,
    queries_model: false,
    load,
};

arguments! {
    TargetNumberOptions {
        shown: bool = Flag(false),
            "whether the prompt contains the target; then it is -9 to 9 by item";
        target: f64 = Number { default: 3.0, min: -5.0, max: 5.0 }, only with shown = "false",
            "the hidden target";
        shots: usize = Whole { default: 3, min: 0, max: 4 },
            "examples before the question; without any, hardly any answer is valid";
    }
}

/// The targets that are shown are `-SPAN..=SPAN`.
const SPAN: i64 = 9;

/// Distance from the target at which an answer is half as good as on it.
const WIDTH: f64 = 1.5;

const SYSTEM: &str = "You reply with JSON only.";

/// Answers of the examples where the target is hidden. They are spread out: a policy starts by copying them.
const HIDDEN_SHOTS: [&str; 4] = ["[2.5]", "[-1.3]", "[0.4]", "[-4]"];

/// Targets and answers of the examples where it is shown. They miss by 1 to 2.5, so that there is something to learn.
const SHOWN_SHOTS: [(i64, &str); 4] = [(5, "[6.1]"), (-7, "[-4.5]"), (0, "[1.5]"), (-2, "[-3]")];

fn load(given: &Map<String, Value>, _seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options = args::read(ID, ARGS, given)?;
    Ok(Arc::new(TargetNumber { options }))
}

struct TargetNumber {
    options: TargetNumberOptions,
}

fn question(target: Option<i64>) -> Message {
    Message::user(match target {
        None => "Write a JSON array that holds one number from -5 to 5.".to_owned(),
        Some(target) => format!("Write a JSON array that holds one number close to {target}."),
    })
}

#[async_trait]
impl Environment for TargetNumber {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        if self.options.shown {
            NonZeroU64::MIN.saturating_add(2 * SPAN.unsigned_abs())
        } else {
            NonZeroU64::MIN
        }
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let shown = self.options.shown.then(|| i64::try_from(index).unwrap_or_default() - SPAN);
        let mut prompt = vec![Message::system(SYSTEM)];
        for i in 0..self.options.shots.min(HIDDEN_SHOTS.len()) {
            let (target, answer) = SHOWN_SHOTS[i];
            prompt.push(question(shown.map(|_| target)));
            prompt.push(Message::assistant(if shown.is_some() { answer } else { HIDDEN_SHOTS[i] }));
        }
        prompt.push(question(shown));
        let target = shown.map_or(self.options.target, |target| target as f64);
        Item { index, prompt, answer: Some(format!("[{target}]")), info: json!({ "target": target }) }
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        lone_number(answer).map(Value::from)
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let target = target(scene.item)?;
        let prediction = whole_answer(&scene).and_then(lone_number);
        let format = flag(prediction.is_some());
        let closeness = prediction.map_or(0.0, |x| 1.0 / (1.0 + ((x - target) / WIDTH).powi(2)));
        let mut metrics = Metrics::from([
            ("format".into(), format),
            ("closeness".into(), closeness),
            ("valid".into(), format),
        ]);
        if let Some(x) = prediction {
            metrics.insert("prediction".into(), x);
            metrics.insert("error".into(), (x - target).abs());
        }
        let reward = 0.2 * format + 0.8 * closeness;
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}

fn target(item: &Item) -> Result<f64, RewardError> {
    let target = item.info.get("target").and_then(Value::as_f64);
    target.ok_or_else(|| RewardError::Environment(format!("item {} of {ID} has no target", item.index)))
}
