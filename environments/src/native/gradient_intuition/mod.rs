//! Solve the task of another environment, and predict what one training step would do to an unrelated answer.
//!
//! The policy is shown the inner task and a probe, a question with its answer, and replies with a line
//! `PREDICTION: <number>` and then `ANSWER: <inner answer>`. The truth is the change of the probe's logprob, summed
//! over its tokens, after one gradient step on a text; the oracle must be able to take that step
//! ([`Oracle::logprob_delta`](minds_core::environment::Oracle::logprob_delta)), else every rollout has a reward error.
//!
//! `reward = inner reward + alpha * bonus`, with `bonus = max(0, 1 - abs(prediction - truth) / (tolerance * sd))`
//!
//! A malformed answer gets the inner environment's reward for an unreadable answer, minus 0.1:
//! nothing is gained by refusing. `sd` is the spread of the truths seen so far, which goes into checkpoints.
//!
//! What one may expect: truths are nearly symmetric about 0, and with the policy's `own` answer as the text they differ
//! inside a group because the answers differ, not because a prediction was better. Always answering 0 gets most of
//! the bonus. `bonus_of_zero` and `bonus_of_mean` show how much; report the bonus minus the larger of them. With the
//! `right` answer as the text, one truth serves a whole group and its members differ only in their predictions.

mod prompt;
mod scale;

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{self, EnvInfo, flag};
use crate::parse::{headed, number};
use async_trait::async_trait;
use minds_core::chat::{Message, Role};
use minds_core::datum::Datum;
use minds_core::environment::{Environment, EnvironmentReply, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_core::rollout::Rollout;
use minds_core::sampling::Stop;
use prompt::{IntuitionProbe, IntuitionProbes};
use scale::TruthScales;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "gradient_intuition";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "solve another task and predict what a training step on it would change; needs a shadow trainer",
    args: ARGS,
    queries_model: true,
    load,
};

arguments! {
    GradientIntuitionOptions {
        inner: String = Text("self_prediction"),
            "the id of the environment whose tasks are solved";
        inner_args: Map<String, Value> = Table,
            "its arguments, and no other's";
        text: StepText = Choice(&["own", "right"]),
            "what the step is taken on: the policy's own answer, or the right one, which the inner task must have";
        alpha: f64 = Number { default: 0.3, min: 0.0, max: 10.0 },
            "the largest bonus";
        tolerance: f64 = Number { default: 2.0, min: 0.1, max: 20.0 },
            "the error, in standard deviations of the truths, at which the bonus ends";
        spread: f64 = Number { default: 0.9, min: 1e-4, max: 100.0 },
            "the standard deviation that is assumed until truths are known, in nats";
    }
}

/// Text that the gradient step trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StepText {
    Own,
    Right,
}

/// How much less an unreadable answer gets than the worst inner answer.
const MARGIN: f64 = 0.1;

fn load(given: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: GradientIntuitionOptions = args::read(ID, ARGS, given)?;
    let inner = native::load(&options.inner, &options.inner_args, seed)?;
    let wrong = |key, value: &str, allowed: &str| EnvError::WrongArg {
        env: ID,
        key,
        value: format!("{value:?}"),
        allowed: allowed.into(),
    };
    if inner.id() == ID {
        return Err(wrong("inner", &options.inner, "another environment"));
    }
    if options.text == StepText::Right && inner.item(0).answer.is_none() {
        let allowed = format!("\"own\": the tasks of `{}` have no right answer", inner.id());
        return Err(wrong("text", "right", &allowed));
    }
    let probes = IntuitionProbes::builtin().map_err(|why| EnvError::Data { env: ID, why })?;
    let items = inner.items().saturating_mul(probes.len());
    // Item `i` wraps inner item `i % n`, whose kind is `i % strata` only where strata divide n.
    let takes_turns = inner.items().get() % inner.strata() == 0;
    let strata = if takes_turns { inner.strata() } else { NonZeroU64::MIN };
    let scales = TruthScales::new(options.spread);
    Ok(Arc::new(GradientIntuition { inner, probes, items, strata, scales, options }))
}

struct GradientIntuition {
    inner: Arc<dyn Environment>,
    probes: IntuitionProbes,
    items: NonZeroU64,
    strata: NonZeroU64,
    scales: TruthScales,
    options: GradientIntuitionOptions,
}

impl GradientIntuition {
    /// Inner item and probe: in one cycle every inner item meets every probe once, and neighbours meet different ones.
    fn pair(&self, index: u64) -> (Item, &IntuitionProbe) {
        let index = index % self.items;
        let round = index / self.inner.items();
        let inner = index % self.inner.items();
        (self.inner.item(inner), self.probes.get(inner.wrapping_add(round)))
    }

    /// The rollout as the inner environment would have seen it. An unreadable answer becomes one that was cut off.
    fn unwrapped(rollout: &Rollout) -> Rollout {
        let mut rollout = rollout.clone();
        for turn in &mut rollout.turns {
            let inner = GradientIntuitionAnswer::parse(&turn.text).map(|parsed| parsed.answer.to_owned());
            turn.complete &= inner.is_some();
            turn.text = inner.unwrap_or_default();
        }
        rollout
    }

    fn text(&self, scene: &ScoringContext<'_>, inner: &Item) -> Result<Datum, RewardError> {
        let none = |what: &str| RewardError::Environment(format!("item {} has no {what}", scene.item.index));
        let datum = match self.options.text {
            StepText::Own => {
                let turn = scene.rollout.turns.last().ok_or_else(|| none("turn"))?;
                Datum::supervised(&turn.prompt, &turn.completion.tokens)
            }
            StepText::Right => {
                let right = inner.answer.as_deref().ok_or_else(|| none("right answer"))?;
                let mut answer = scene.renderer.answer(right);
                if let Stop::Tokens(stops) = scene.renderer.stop() {
                    answer.extend(stops.first());
                }
                Datum::supervised(&scene.renderer.prompt(&inner.prompt)?, &answer)
            }
        };
        datum.map_err(|e| RewardError::Environment(format!("the text to learn: {e}")))
    }
}

/// A parsed answer: a prediction, and an answer to the inner task.
struct GradientIntuitionAnswer<'a> {
    prediction: f64,
    answer: &'a str,
}

impl<'a> GradientIntuitionAnswer<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (prediction, answer) = headed(text, "PREDICTION", "ANSWER")?;
        Some(Self { prediction: number(prediction)?, answer })
    }
}

#[async_trait]
impl Environment for GradientIntuition {
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
        let (inner, probe) = self.pair(index);
        let prompt = self.probes.wrap(&inner.prompt, probe, self.options.text == StepText::Own);
        let info = json!({ "inner": inner.info, "inner_item": inner.index, "probe": probe.question });
        Item { index: index % self.items, prompt, answer: inner.answer, info }
    }

    async fn reply(&self, item: &Item, conversation: &[Message]) -> Result<EnvironmentReply, RewardError> {
        let (inner, _) = self.pair(item.index);
        let mut messages = inner.prompt.clone();
        for message in conversation.iter().skip(item.prompt.len()) {
            let content = match message.role {
                Role::Assistant => {
                    GradientIntuitionAnswer::parse(&message.content).map_or("", |parsed| parsed.answer)
                }
                Role::System | Role::User => &message.content,
            };
            messages.push(Message { role: message.role, content: content.into() });
        }
        self.inner.reply(&inner, &messages).await
    }

    fn needs_shadow_adapters(&self) -> bool {
        true
    }

    /// Its own queries go to the shadow adapters.
    fn queries_policy(&self) -> bool {
        self.inner.queries_policy()
    }

    fn parse(&self, item: &Item, answer: &str) -> Option<Value> {
        let GradientIntuitionAnswer { prediction, answer } = GradientIntuitionAnswer::parse(answer)?;
        let inner = self.inner.parse(&self.pair(item.index).0, answer);
        Some(json!({ "prediction": prediction, "answer": answer, "inner": inner }))
    }

    fn memory(&self) -> Option<Value> {
        Some(json!({ "truths": self.scales.memory(), "inner": self.inner.memory() }))
    }

    fn restore_memory(&self, memory: &Value) -> Result<(), RewardError> {
        if !memory["inner"].is_null() {
            self.inner.restore_memory(&memory["inner"])?;
        }
        let wrong = |e: &dyn std::fmt::Display| RewardError::Environment(format!("the memory of {ID}: {e}"));
        let truths = serde_json::from_value(memory["truths"].clone()).map_err(|e| wrong(&e))?;
        self.scales.restore_memory(truths).map_err(|why| wrong(&why))
    }

    /// Measures the step even if the answer is invalid: a service that fails must not take the valid rollouts out
    /// of a group and leave the others.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let (inner_item, probe) = self.pair(scene.item.index);
        let rollout = Self::unwrapped(scene.rollout);
        let inner =
            self.inner.score(ScoringContext { item: &inner_item, rollout: &rollout, ..scene }).await?;
        let text = self.text(&scene, &inner_item)?;
        let question = [Message::user(&*probe.question)];
        let truth = scene.answer_logprob_delta(text, &question, &probe.answer).await?.change();
        let scale = self.scales.of(scene.rollout.id.group, truth);

        let prediction = rollout
            .turns
            .last()
            .filter(|turn| turn.complete)
            .and_then(|_| GradientIntuitionAnswer::parse(scene.answer()))
            .map(|parsed| parsed.prediction);
        let mut metrics: Metrics =
            inner.metrics.into_iter().map(|(name, value)| (format!("inner_{name}"), value)).collect();
        let inner = f64::from(inner.reward.get());
        let bonus = |prediction: f64| scale.bonus(prediction, truth, self.options.tolerance);
        metrics.extend([
            ("valid".into(), flag(prediction.is_some())),
            ("inner_reward".into(), inner),
            ("truth".into(), truth),
            ("spread".into(), scale.sd),
            ("bonus_of_zero".into(), bonus(0.0)),
            ("bonus_of_mean".into(), bonus(scale.mean)),
        ]);
        let Some(prediction) = prediction else {
            return Ok(Score { reward: Reward::new((inner - MARGIN) as f32)?, metrics });
        };
        metrics.extend([
            ("prediction".into(), prediction),
            ("error".into(), (prediction - truth).abs()),
            ("bonus".into(), bonus(prediction)),
            ("sign_right".into(), flag(prediction * truth > 0.0)),
        ]);
        let reward = inner + self.options.alpha * bonus(prediction);
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}
