//! The prompt: an inner conversation with a probe beside every question and a prediction before every answer.

use minds_core::chat::{Message, Role};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::num::NonZeroU64;

const PROBES: &str = include_str!("probes.toml");

/// A question with the answer whose logprob is watched.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntuitionProbe {
    pub(super) question: String,
    pub(super) answer: String,
}

/// A probe that stands in an example, with a prediction.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeExample {
    question: String,
    answer: String,
    prediction: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeFile {
    example: Vec<ProbeExample>,
    probe: Vec<IntuitionProbe>,
}

/// All probes. No two have a question in common, and no example is among them.
pub(super) struct IntuitionProbes {
    examples: Vec<ProbeExample>,
    probes: Vec<IntuitionProbe>,
    len: NonZeroU64,
}

impl IntuitionProbes {
    /// The probes that come with the crate.
    pub(super) fn builtin() -> Result<Self, String> {
        Self::parse(PROBES)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let ProbeFile { example: examples, probe: probes } =
            toml::from_str(text).map_err(|e| e.to_string())?;
        let texts = probes.iter().map(|probe| (&probe.question, &probe.answer));
        let mut seen = BTreeSet::new();
        for (question, answer) in texts.chain(examples.iter().map(|e| (&e.question, &e.answer))) {
            if question.trim().is_empty() || answer.trim().is_empty() {
                return Err(format!("the probe {question:?} has an empty text"));
            }
            if !seen.insert(question) {
                return Err(format!("the probe {question:?} stands there twice"));
            }
        }
        if examples.is_empty() {
            return Err("there are no examples".into());
        }
        let len = NonZeroU64::new(probes.len() as u64).ok_or("there are no probes")?;
        Ok(Self { examples, probes, len })
    }

    pub(super) fn len(&self) -> NonZeroU64 {
        self.len
    }

    /// The probe at `index`, taken modulo [`IntuitionProbes::len`].
    pub(super) fn get(&self, index: u64) -> &IntuitionProbe {
        &self.probes[(index % self.len) as usize]
    }

    /// The inner conversation, as messages and not as text in one message: its system line is extended by the question
    /// of this task, each of its examples gets a probe and a prediction, and its question the probe of the item.
    pub(super) fn wrap(&self, inner: &[Message], probe: &IntuitionProbe, own: bool) -> Vec<Message> {
        let learnt = if own { "your answer" } else { "the right answer" };
        let asked = format!(
            "Also predict how one training step on {learnt} would change the log-probability of the probe's answer. \
             Reply with a line PREDICTION: and a number, then ANSWER: and what is asked above."
        );
        let mut examples = self.examples.iter().cycle();
        let questions = inner.iter().filter(|message| message.role == Role::User).count();
        let mut messages = Vec::with_capacity(inner.len() + 1);
        if inner.first().is_none_or(|first| first.role != Role::System) {
            messages.push(Message::system(&*asked));
        }
        let mut seen = 0;
        let mut example = None;
        for (i, Message { role, content }) in inner.iter().enumerate() {
            messages.push(match role {
                Role::System if i == 0 => Message::system(format!("{content} {asked}")),
                Role::System => Message::system(&**content),
                Role::User => {
                    seen += 1;
                    example = if seen < questions { examples.next() } else { None };
                    let (q, a) = example.map_or((&probe.question, &probe.answer), |e: &ProbeExample| {
                        (&e.question, &e.answer)
                    });
                    Message::user(format!("{content}\nProbe: {q} {a}"))
                }
                Role::Assistant => {
                    let prediction = example.map_or(0.0, |e| e.prediction);
                    Message::assistant(format!("PREDICTION: {prediction}\nANSWER: {content}"))
                }
            });
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_least_sixty_probes_with_short_answers() {
        let probes = IntuitionProbes::builtin().expect("the probes that come with the crate are right");
        assert!(probes.probes.len() >= 60, "{}", probes.probes.len());
        for IntuitionProbe { question, answer } in &probes.probes {
            assert!(question.ends_with('?') && answer.ends_with('.'), "{question}");
            assert!((2..=8).contains(&answer.split(' ').count()), "{answer}");
        }
    }

    #[test]
    fn example_predictions_have_both_signs_and_differ() {
        let probes = IntuitionProbes::builtin().expect("right");
        let predictions: Vec<f64> = probes.examples.iter().map(|e| e.prediction).collect();
        assert_eq!(predictions, [0.7, -0.4, 1.6, -1.2]);
    }

    #[test]
    fn data_that_breaks_a_promise_is_refused() {
        let example = "[[example]]\nquestion = \"e\"\nanswer = \"a\"\nprediction = 1\n";
        let probe = "[[probe]]\nquestion = \"p\"\nanswer = \"a\"\n";
        assert!(IntuitionProbes::parse(&format!("{example}{probe}")).is_ok());
        for (text, part) in [
            (format!("{example}{probe}{probe}"), "twice"),
            (format!("{example}{}", probe.replace("\"p\"", "\"e\"")), "twice"),
            (format!("{example}{}", probe.replace("\"a\"", "\" \"")), "empty"),
            (format!("example = []\n{probe}"), "no examples"),
            (format!("probe = []\n{example}"), "no probes"),
        ] {
            let error = IntuitionProbes::parse(&text).err().expect(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
