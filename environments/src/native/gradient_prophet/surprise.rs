//! The task `surprise`: order the probes of a lesson by how much the lesson changes the first word of the answer.
//!
//! An item is a lesson with all its probes, its control among them; kinds of lessons take turns. The order of the
//! probes in the prompt is seeded, so a place gives nothing away.

use super::lesson_bank::{Lesson, LessonBank, LessonExample, LessonProbe};
use super::ranking::{divergence, is_ordered, spearman};
use super::{ID, no_such_item, posterior, prior};
use crate::error::EnvError;
use crate::native::{flag, whole_answer};
use crate::parse::permutation;
use async_trait::async_trait;
use futures::future::{try_join, try_join_all};
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::ids::Token;
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde_json::{Value, json};
use std::fmt::Write;
use std::num::NonZeroU64;
use std::sync::Arc;

const SYSTEM: &str = "You order probes by how much a lesson changes what a reader answers to them. Reply with a JSON \
                      array of the probe numbers, the most changed first.";

/// Reward of an answer that is not a permutation. The only valid answer with this reward is the exact reverse.
const INVALID: f32 = -1.0;

/// Next tokens asked for; 20 hold nearly all of a first token's probability.
const TOP: usize = 20;

pub(super) struct SurpriseTask {
    bank: LessonBank,
    items: NonZeroU64,
    strata: NonZeroU64,
    shots: usize,
}

impl SurpriseTask {
    pub(super) fn new(bank: LessonBank, shots: usize) -> Result<Self, EnvError> {
        let wrong = |why: String| EnvError::Data { env: ID, why };
        if let Some(lesson) = bank.lessons.iter().find(|lesson| lesson.probes.len() < 2) {
            return Err(wrong(format!("the lesson {:?} has no order to find", lesson.question)));
        }
        let count = |n: usize| NonZeroU64::new(n as u64).ok_or_else(|| wrong("there are no lessons".into()));
        let items = count(bank.lessons.len())?;
        let strata = count(bank.kinds)?;
        Ok(Self { bank, items, strata, shots })
    }

    fn lesson(&self, index: u64) -> Option<&Lesson> {
        self.bank.lessons.get(usize::try_from(index % self.items).ok()?)
    }
}

fn question(lesson: &str, answer: &str, probes: &[LessonProbe]) -> Message {
    let mut text = format!("Lesson: {lesson} {answer}\n");
    for (i, probe) in probes.iter().enumerate() {
        writeln!(text, "Probe {}: {}", i + 1, probe.question).expect("writing to a string cannot fail");
    }
    text.push_str("Which probes does the lesson change most? Order their numbers.");
    Message::user(text)
}

fn shot(example: &LessonExample) -> [Message; 2] {
    let LessonExample { question: lesson, answer, probes, order, .. } = example;
    [question(lesson, answer, probes), Message::assistant(format!("{order:?}"))]
}

/// The most likely first tokens of the reader's answer.
async fn next(scene: &ScoringContext<'_>, messages: &[Message]) -> Result<Arc<[(Token, f32)]>, RewardError> {
    let instead = |why: &str| {
        RewardError::Unsupported(format!(
            "the task `surprise` of {ID} needs the {TOP} most likely next tokens, and there are none ({why}): score \
             with a service that returns top-k logprobs, or use the task `in_context`, which needs none"
        ))
    };
    match scene.oracle.next_tokens(scene.renderer.prompt(messages)?.into(), TOP).await {
        Ok(top) if top.is_empty() => Err(instead("the list is empty")),
        Ok(top) => Ok(top),
        Err(RewardError::Unsupported(why) | RewardError::Refused(why)) => Err(instead(&why)),
        Err(other) => Err(other),
    }
}

async fn surprise(
    scene: &ScoringContext<'_>,
    lesson: &Lesson,
    probe: &LessonProbe,
) -> Result<f64, RewardError> {
    let before = prior(probe);
    let after = posterior(lesson, probe);
    let (prior, posterior) = try_join(next(scene, &before), next(scene, &after)).await?;
    let kl = divergence(&posterior, &prior);
    if kl.is_finite() {
        Ok(kl)
    } else {
        Err(RewardError::NotFinite(format!("the surprise of a probe is {kl}")))
    }
}

#[async_trait]
impl Environment for SurpriseTask {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.items
    }

    fn strata(&self) -> NonZeroU64 {
        self.strata
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items;
        let mut prompt = vec![Message::system(SYSTEM)];
        prompt.extend(self.bank.examples.iter().take(self.shots).flat_map(shot));
        let mut info = json!({ "task": "surprise" });
        if let Some(lesson) = self.lesson(index) {
            prompt.push(question(&lesson.question, &lesson.answer, &lesson.probes));
            info["kind"] = (*lesson.kind).into();
            info["probes"] = lesson.probes.len().into();
        }
        Item { index, prompt, answer: None, info }
    }

    fn parse(&self, item: &Item, answer: &str) -> Option<Value> {
        permutation(answer, self.lesson(item.index)?.probes.len()).map(|order| json!(order))
    }

    /// Queries the surprises even if the answer is invalid: a service that fails must not take the valid
    /// rollouts out of a group and leave the others. Nor must surprises that are all equal; where some are, these share
    /// the mean of their ranks.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let lesson = self.lesson(scene.item.index).ok_or_else(|| no_such_item(scene.item.index))?;
        let surprises =
            try_join_all(lesson.probes.iter().map(|probe| surprise(&scene, lesson, probe))).await?;
        let no_order = || {
            RewardError::Environment(format!(
                "all {} probes are equally surprising: no order is right",
                surprises.len()
            ))
        };
        // Before the answer is read: where no order is right, an invalid answer is no worse than a valid one.
        if !is_ordered(&surprises) {
            return Err(no_order());
        }
        let order = whole_answer(&scene).and_then(|text| permutation(text, surprises.len()));
        let largest = surprises.iter().copied().fold(0.0, f64::max);
        let mut metrics = Metrics::from([
            ("valid".into(), flag(order.is_some())),
            ("probes".into(), surprises.len() as f64),
            ("largest_surprise".into(), largest),
        ]);
        let mut reward = INVALID;
        if let Some(order) = order {
            let rho = spearman(&order, &surprises).ok_or_else(no_order)?;
            let first = order.first().and_then(|probe| surprises.get(probe - 1));
            metrics.insert("spearman".into(), rho);
            metrics.insert("first_right".into(), flag(first.is_some_and(|surprise| *surprise >= largest)));
            reward = rho as f32;
        }
        Ok(Score { reward: Reward::new(reward)?, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lesson_with_one_probe_is_refused() {
        let mut bank = LessonBank::builtin(0).expect("right");
        bank.lessons[7].probes.truncate(1);
        let error = SurpriseTask::new(bank, 3).err().expect("refused").to_string();
        assert!(error.contains("has no order to find"), "{error}");
    }
}
