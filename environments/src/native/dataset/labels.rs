//! Answers with labels, which tell how far a grader model can be trusted.

use super::judge::ModelJudge;
use crate::rows::{DataRow, RowPlace};
use futures::future::join_all;
use minds_core::chat::Message;
use serde_json::Value;
use tokio::sync::OnceCell;
use tracing::{info, warn};

/// One labelled answer with its task.
pub(super) struct LabelledAnswer {
    pub place: RowPlace,
    pub prompt: Vec<Message>,
    pub reference: String,
    pub completion: String,
    /// From 0 to 1.
    pub label: f64,
}

impl LabelledAnswer {
    /// Reads completion and label of a row.
    ///
    /// # Errors
    /// One of them is missing or wrong.
    pub(super) fn read(row: &DataRow) -> Result<(String, f64), String> {
        let completion = row.columns.get("completion").and_then(Value::as_str);
        let completion = completion.ok_or("the row has no text `completion`")?;
        let label = match row.columns.get("label") {
            Some(Value::Bool(is_right)) => Some(f64::from(u8::from(*is_right))),
            Some(value) => value.as_f64().filter(|label| (0.0..=1.0).contains(label)),
            None => None,
        };
        let label = label.ok_or("the row has no `label`: true, false or a number from 0 to 1")?;
        Ok((completion.to_owned(), label))
    }
}

/// How a grader model agrees with labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LabelAgreement {
    /// Answers that were graded.
    pub graded: usize,
    /// Answers on whose side of one half label and score agree.
    pub agreed: usize,
    /// Mean distance between label and score.
    pub error: f64,
    /// Labelled answers that the grader model did not grade.
    pub failed: usize,
}

/// Labelled answers, which are graded once.
pub(super) struct Labels {
    answers: Vec<LabelledAnswer>,
    agreement: OnceCell<LabelAgreement>,
}

impl Labels {
    pub(super) fn new(answers: Vec<LabelledAnswer>) -> Self {
        Self { answers, agreement: OnceCell::new() }
    }

    /// Grades all answers at the first call and logs how far the grades agree with the labels.
    pub(super) async fn compare_once(&self, judge: &ModelJudge) -> &LabelAgreement {
        self.agreement.get_or_init(|| self.compare(judge)).await
    }

    async fn compare(&self, judge: &ModelJudge) -> LabelAgreement {
        // The grader model bounds how many run at a time.
        let mut grades = Vec::new();
        for answer in &self.answers {
            grades.push(judge.grade(&answer.prompt, &answer.reference, &answer.completion));
        }
        let grades = join_all(grades).await;
        let mut found = LabelAgreement::default();
        for (answer, grade) in self.answers.iter().zip(grades) {
            let grade = match grade {
                Ok(grade) => grade,
                Err(error) => {
                    found.failed += 1;
                    warn!(place = %answer.place, %error, "a labelled answer was not graded");
                    continue;
                }
            };
            found.graded += 1;
            found.error += (grade.score - answer.label).abs();
            if (grade.score >= 0.5) == (answer.label >= 0.5) {
                found.agreed += 1;
            } else {
                let label = answer.label;
                warn!(place = %answer.place, label, grade.score, grade.reason, "the grader model disagrees with a label");
            }
        }
        found.error /= found.graded.max(1) as f64;
        let LabelAgreement { graded, agreed, error, failed } = found;
        info!(graded, agreed, mean_error = error, failed, "the grader model was compared with labels");
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_label_is_a_truth_value_or_a_share() {
        let read = |row: Value| {
            let place = RowPlace::row("x".into(), 1);
            LabelledAnswer::read(&DataRow { place, columns: row.as_object().unwrap().clone() })
        };
        for (label, value) in [(json!(true), 1.0), (json!(false), 0.0), (json!(0.25), 0.25), (json!(1), 1.0)]
        {
            assert_eq!(read(json!({"completion": "a", "label": label})), Ok(("a".into(), value)));
        }
        for label in [json!(1.5), json!("yes"), json!(null), json!(-1)] {
            assert!(read(json!({"completion": "a", "label": label})).unwrap_err().contains("has no `label`"));
        }
        assert!(read(json!({"label": 1})).unwrap_err().contains("has no text `completion`"));
    }
}
