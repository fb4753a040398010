//! Solve a sum and say how sure you are: arithmetic with calibration.
//!
//! The answer is two lines, `FINAL ANSWER: <whole number>` and `CONFIDENCE: <share>`. The reward needs no model:
//!
//! `0.2 format + 0.5 correct + 0.3 calibration`, from 0 to 1
//!
//! | part | value |
//! |---|---|
//! | `format` | 1 if both lines are right, else 0 |
//! | `correct` | 1 if the number is exactly the result, compared digit by digit, else 0 |
//! | `calibration`, `brier` | `1 - (confidence - correct)^2`; 0 without a confidence |
//! | `calibration`, `log` | `1 - ln p / ln 0.01` with `p` the share given to what is the case, at least 0.01; 0 without a confidence |
//!
//! A single line `FINAL ANSWER` can still be correct; any other violation of the grammar gets 0. Every answer with both
//! lines gets at least 0.2. Both calibration scores are proper: true probabilities maximize them. Even so, always being
//! wrong with confidence 0 gets 0.5, and large steps fall into that optimum: watch `correct` and `confidence`, not the
//! reward alone.

mod questions;

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use crate::parse::{Integer, labelled, share};
use async_trait::async_trait;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use questions::{SumLevel, SumQuestion, SumQuestions};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "self_prediction";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "solve a sum and say how sure you are; rewards need no model",
    args: ARGS,
    queries_model: false,
    load,
};

arguments! {
    SelfPredictionOptions {
        level: SumLevel = Choice(&["to_20", "one_digit", "full"]),
            "operands: 0 to 20 with + - *; one-digit sums; or 0 to 999 with + - *, 15% of them up to 10^12";
        items: NonZeroU64 = Whole { default: 5000, min: 3, max: 1_000_000 }, only with level = "full",
            "questions in one cycle; the other levels have all there are";
        shots: usize = Whole { default: 2, min: 0, max: 4 },
            "examples before the question; without any, hardly any answer is valid";
        calibration: Calibration = Choice(&["brier", "log"]),
            "how a confidence is scored: by its square error, or by the logarithm of the share given to the truth";
    }
}

/// How a confidence is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Calibration {
    Brier,
    Log,
}

impl Calibration {
    /// Lower bound of the share in the logarithm: a single confident mistake must not outweigh all else.
    const LEAST: f64 = 0.01;

    /// Calibration score from 0 to 1.
    fn score(self, confidence: f64, correct: bool) -> f64 {
        match self {
            Self::Brier => 1.0 - (confidence - flag(correct)).powi(2),
            Self::Log => {
                let given = if correct { confidence } else { 1.0 - confidence };
                1.0 - given.max(Self::LEAST).ln() / Self::LEAST.ln()
            }
        }
    }
}

const SYSTEM: &str = "You solve sums and say how sure you are, from 0 to 1. Reply with two lines: FINAL ANSWER and \
                      CONFIDENCE.";

/// Confidences of the examples. They are spread out, because a policy starts by copying them.
const CONFIDENCES: [f64; 4] = [0.9, 0.3, 0.7, 0.5];

fn load(given: &Map<String, Value>, seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: SelfPredictionOptions = args::read(ID, ARGS, given)?;
    let questions = SumQuestions::new(options.level, options.items, seed);
    Ok(Arc::new(SelfPrediction { options, questions }))
}

struct SelfPrediction {
    options: SelfPredictionOptions,
    questions: SumQuestions,
}

fn shot((question, confidence): (SumQuestion, f64)) -> [Message; 2] {
    let answer = format!("FINAL ANSWER: {}\nCONFIDENCE: {confidence}", question.result());
    [Message::user(question.to_string()), Message::assistant(answer)]
}

#[async_trait]
impl Environment for SelfPrediction {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.questions.len()
    }

    fn strata(&self) -> NonZeroU64 {
        self.questions.operations()
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let question = self.questions.get(index);
        let mut prompt = vec![Message::system(SYSTEM)];
        prompt
            .extend(questions::EXAMPLES.into_iter().zip(CONFIDENCES).take(self.options.shots).flat_map(shot));
        prompt.push(Message::user(question.to_string()));
        let info = json!({ "operation": question.sign() });
        Item { index, prompt, answer: Some(question.result().to_string()), info }
    }

    fn parse(&self, _: &Item, answer: &str) -> Option<Value> {
        let SelfPredictionAnswer { answer, confidence } = SelfPredictionAnswer::parse(answer)?;
        // A result may be too large for a JSON number of any reader.
        Some(json!({ "answer": answer.to_string(), "confidence": confidence }))
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let parsed = whole_answer(&scene).and_then(SelfPredictionAnswer::parse);
        let confidence = parsed.as_ref().and_then(|parsed| parsed.confidence);
        let is_correct = match &parsed {
            Some(parsed) => parsed.is_correct(scene.item)?,
            None => false,
        };

        let format = flag(confidence.is_some());
        let correct = flag(is_correct);
        let calibration = confidence.map_or(0.0, |c| self.options.calibration.score(c, is_correct));
        let mut metrics = Metrics::from([
            ("format".into(), format),
            ("correct".into(), correct),
            ("calibration".into(), calibration),
            ("valid".into(), format),
        ]);
        if let Some(confidence) = confidence {
            metrics.insert("confidence".into(), confidence);
        }
        let reward = 0.2 * format + 0.5 * correct + 0.3 * calibration;
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}

/// The parts of an answer that can be read.
struct SelfPredictionAnswer {
    answer: Integer,
    confidence: Option<f64>,
}

impl SelfPredictionAnswer {
    /// Both lines, or the first alone. An invalid confidence counts as absent.
    fn parse(text: &str) -> Option<Self> {
        if let Some([answer]) = labelled(text, ["FINAL ANSWER"]) {
            return Some(Self { answer: Integer::parse(answer)?, confidence: None });
        }
        let [answer, confidence] = labelled(text, ["FINAL ANSWER", "CONFIDENCE"])?;
        Some(Self { answer: Integer::parse(answer)?, confidence: share(confidence) })
    }

    fn is_correct(&self, item: &Item) -> Result<bool, RewardError> {
        let right = item.answer.as_deref().and_then(Integer::parse);
        let right = right
            .ok_or_else(|| RewardError::Environment(format!("item {} of {ID} has no result", item.index)))?;
        Ok(self.answer == right)
    }
}

#[cfg(test)]
mod tests {
    use super::Calibration::{Brier, Log};

    #[test]
    fn calibration_by_hand() {
        assert_eq!((Brier.score(1.0, true), Brier.score(1.0, false)), (1.0, 0.0));
        assert!((Brier.score(0.7, false) - 0.51).abs() < 1e-12);
        // ln 0.1 is half of ln 0.01; below 0.01 nothing more is lost.
        assert!((Log.score(0.1, true) - 0.5).abs() < 1e-12);
        assert!((Log.score(0.9, false) - 0.5).abs() < 1e-9);
        assert_eq!((Log.score(1.0, true), Log.score(0.0, true), Log.score(0.001, true)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn the_best_confidence_is_the_true_accuracy() {
        for calibration in [Brier, Log] {
            let earned = |c: f64| 0.7 * calibration.score(c, true) + 0.3 * calibration.score(c, false);
            assert!((0..=100).all(|c| earned(f64::from(c) / 100.0) <= earned(0.7)), "{calibration:?}");
        }
    }
}
