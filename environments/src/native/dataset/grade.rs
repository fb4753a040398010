//! What decides on an answer: rules, or a program.

use super::code::{CodeTests, CodeVerifier};
use super::judge::ModelJudge;
use super::labels::Labels;
use super::math::MathVerifier;
use super::verify::Verifier;
use crate::rows::Columns;
use minds_core::chat::Message;
use minds_core::reward::RewardError;
use serde_json::{Value, json};

/// What was read in an answer, and how right it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AnswerGrade {
    /// What was read, for people.
    pub read: Value,
    /// From 0 to 1.
    pub correct: f64,
}

/// What an answer is compared with.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub prompt: &'a [Message],
    /// Blank where there is none.
    pub reference: &'a str,
    pub columns: &'a Columns,
}

/// Decides how right an answer is.
pub(super) enum Grader {
    /// Compares by rules, at once.
    Rules(Verifier),
    /// Compares mathematical objects, in Python.
    Math(MathVerifier),
    /// Runs the answer's code.
    Code(CodeVerifier),
    /// Asks a grader model, which is first compared with labelled answers, if there are any.
    Model(Box<ModelJudge>, Option<Labels>),
}

impl Grader {
    /// Checks that a row's reference can be compared with answers.
    ///
    /// # Errors
    /// No answer to this row could ever be right.
    pub(super) fn check(&self, task: Task<'_>) -> Result<(), String> {
        match self {
            Self::Rules(verifier) => verifier.check(task.reference, task.columns),
            Self::Math(_) if task.reference.trim().is_empty() => Err("`answer` is blank".into()),
            Self::Math(_) => Ok(()),
            Self::Code(_) => {
                CodeTests::parse(task.reference).map(|_| ()).map_err(|why| format!("`answer`: {why}"))
            }
            Self::Model(..) => Ok(()),
        }
    }

    /// Decides on an answer; `None` where nothing can be read in it.
    ///
    /// # Errors
    /// What decides has failed, which says nothing about the answer.
    pub(super) async fn grade(
        &self,
        answer: &str,
        task: Task<'_>,
    ) -> Result<Option<AnswerGrade>, RewardError> {
        match self {
            Self::Rules(verifier) => {
                let found =
                    verifier.find(answer, task.reference, task.columns).map_err(RewardError::Environment)?;
                Ok(found.map(|found| AnswerGrade { read: found.value, correct: share(found.is_correct) }))
            }
            Self::Math(verifier) => {
                let found = verifier.compare(answer, task.reference).await?;
                if !found.reference {
                    let why = format!("math-verify cannot read the reference {:?}", task.reference);
                    return Err(RewardError::Environment(why));
                }
                Ok(found.read.map(|read| AnswerGrade { read: read.into(), correct: share(found.correct) }))
            }
            Self::Code(verifier) => {
                let Some(code) = CodeVerifier::code(answer) else { return Ok(None) };
                let tests = CodeTests::parse(task.reference).map_err(RewardError::Environment)?;
                let passes = verifier.passes(code, tests).await?;
                Ok(Some(AnswerGrade { read: code.into(), correct: share(passes) }))
            }
            Self::Model(judge, labels) => {
                if let Some(labels) = labels {
                    labels.compare_once(judge).await;
                }
                let grade = judge.grade(task.prompt, task.reference, answer).await?;
                Ok(Some(AnswerGrade { read: answer.into(), correct: grade.score }))
            }
        }
    }

    /// What can be read in an answer without running anything.
    pub(super) fn read(&self, answer: &str, task: Task<'_>) -> Option<Value> {
        match self {
            Self::Rules(verifier) => {
                let found = verifier.find(answer, task.reference, task.columns).ok().flatten();
                found.map(|found| found.value)
            }
            Self::Math(_) => Some(answer.into()),
            Self::Code(_) => CodeVerifier::code(answer).map(Value::from),
            Self::Model(judge, _) => {
                let grade = judge.remembered(task.prompt, task.reference, answer);
                Some(grade.map_or_else(
                    || answer.into(),
                    |grade| json!({ "answer": answer, "score": grade.score, "reason": grade.reason }),
                ))
            }
        }
    }
}

fn share(is_right: bool) -> f64 {
    f64::from(u8::from(is_right))
}
