//! The task `in_context`: say by how much a lesson changes the logprob of one target.
//!
//! Items are pairs of a lesson and a probe. Even items ask a related probe, odd ones the control of the same lesson,
//! so that a schedule which lets them take turns shows both kinds in equal parts: their truths differ by a factor of
//! five, and by chance alone the mean reward would jump from step to step.

use super::lesson_bank::{Lesson, LessonBank, LessonExample, LessonProbe};
use super::reward::RewardForm;
use super::{ID, no_such_item, posterior, prior};
use crate::error::EnvError;
use crate::native::{flag, whole_answer};
use crate::parse::lone_number;
use async_trait::async_trait;
use futures::future::try_join;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde_json::{Value, json};
use std::num::NonZeroU64;

const SYSTEM: &str =
    "You predict how a lesson changes what a reader expects. Reply with a JSON array holding one number.";

/// Reward of an answer that is not an array of one number. Every valid answer earns more.
const INVALID: f32 = 0.0;

/// Two strata: related probes and controls.
const STRATA: NonZeroU64 = NonZeroU64::MIN.saturating_add(1);

pub(super) struct InContextTask {
    bank: LessonBank,
    /// Indices of lesson and probe, related probes and controls in turn.
    pairs: Vec<(usize, usize)>,
    items: NonZeroU64,
    shots: usize,
    form: RewardForm,
    width: f64,
}

impl InContextTask {
    pub(super) fn new(
        bank: LessonBank,
        shots: usize,
        form: RewardForm,
        width: f64,
    ) -> Result<Self, EnvError> {
        let mut pairs = Vec::new();
        for (l, lesson) in bank.lessons.iter().enumerate() {
            let control = lesson.probes.iter().position(|probe| probe.control);
            let related = lesson.probes.iter().enumerate().filter(|(_, probe)| !probe.control);
            for ((p, _), control) in related.zip(control.into_iter().cycle()) {
                pairs.extend([(l, p), (l, control)]);
            }
        }
        let items = NonZeroU64::new(pairs.len() as u64)
            .ok_or_else(|| EnvError::Data { env: ID, why: "there are no lessons".into() })?;
        Ok(Self { bank, pairs, items, shots, form, width })
    }

    fn pair(&self, index: u64) -> Option<(&Lesson, &LessonProbe)> {
        let (lesson, probe) = *self.pairs.get(usize::try_from(index % self.items).ok()?)?;
        let lesson = self.bank.lessons.get(lesson)?;
        Some((lesson, lesson.probes.get(probe)?))
    }

    fn shot(&self, example: &LessonExample) -> Option<[Message; 2]> {
        let probe = example.probes.get(example.probe.checked_sub(1)?)?;
        let answer = match self.form {
            RewardForm::PerToken => example.per_token,
            RewardForm::Sum | RewardForm::Log => example.sum,
        };
        let question = question(&example.question, &example.answer, probe, self.form);
        Some([question, Message::assistant(format!("[{answer}]"))])
    }
}

fn question(lesson: &str, answer: &str, probe: &LessonProbe, form: RewardForm) -> Message {
    let per = if form == RewardForm::PerToken { " per token" } else { "" };
    let LessonProbe { question, target, .. } = probe;
    Message::user(format!(
        "Lesson: {lesson} {answer}\nProbe: {question}\nTarget: {target}\n\
         How much does the lesson change the log-probability of the target{per}?"
    ))
}

#[async_trait]
impl Environment for InContextTask {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.items
    }

    fn strata(&self) -> NonZeroU64 {
        STRATA
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items;
        let mut prompt = vec![Message::system(SYSTEM)];
        prompt.extend(self.bank.examples.iter().take(self.shots).filter_map(|e| self.shot(e)).flatten());
        let mut info = json!({ "task": "in_context" });
        if let Some((lesson, probe)) = self.pair(index) {
            prompt.push(question(&lesson.question, &lesson.answer, probe, self.form));
            info["kind"] = (*lesson.kind).into();
            info["related"] = (!probe.control).into();
        }
        Item { index, prompt, answer: None, info }
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        lone_number(answer).map(Value::from)
    }

    /// Queries the truth even if the answer is invalid: it is a metric of every rollout, and a service that
    /// fails must not take the valid ones out of a group and leave the others.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let (lesson, probe) = self.pair(scene.item.index).ok_or_else(|| no_such_item(scene.item.index))?;
        let before = prior(probe);
        let after = posterior(lesson, probe);
        let ((prior, tokens), (posterior, _)) = try_join(
            scene.answer_logprob(&before, &probe.target),
            scene.answer_logprob(&after, &probe.target),
        )
        .await?;
        let truth = self.form.truth(prior, posterior, tokens);
        if !truth.is_finite() {
            let why = format!("the logprob of a target went from {prior} to {posterior}");
            return Err(RewardError::NotFinite(why));
        }
        let prediction = whole_answer(&scene).and_then(lone_number);
        let mut metrics = Metrics::from([
            ("valid".into(), flag(prediction.is_some())),
            ("related".into(), flag(!probe.control)),
            ("truth".into(), truth),
        ]);
        let mut reward = INVALID;
        if let Some(prediction) = prediction {
            reward = self.form.reward(prediction, truth, self.width) as f32;
            metrics.insert("prediction".into(), prediction);
            metrics.insert("error".into(), self.form.error(prediction, truth));
        }
        Ok(Score { reward: Reward::new(reward)?, metrics })
    }
}
