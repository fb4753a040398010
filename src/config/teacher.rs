//! The `[teacher]` table: a model whose probabilities the policy is trained toward, token by token.

use super::choice::WeightsChoice;
use super::error::{KeyProblem, ensure_number};
use super::file::{ConfigFile, TeacherConfig};
use minds_stages::batcher::{BatcherOptions, ConstantGroups};
use std::path::PathBuf;

/// What the teacher is, and what it reads.
#[derive(Clone, Debug, PartialEq)]
pub struct TeacherPlan {
    /// Weights of the teacher.
    pub model: TeacherModel,
    /// Instructions that the teacher reads and the policy does not.
    pub system: Option<String>,
    /// File with conversations that the teacher reads before each prompt.
    pub examples: Option<PathBuf>,
}

/// The weights of a teacher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeacherModel {
    /// The base model of the run.
    Base,
    /// Saved sampler weights of the run's service, by their path.
    Saved(String),
    /// Another model of the same service, by its name, or for the embedded engine a folder or a GGUF file.
    Other(String),
}

impl TeacherPlan {
    /// The meaning of the table. Nothing is fetched or read.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(file: &ConfigFile) -> Result<Option<Self>, KeyProblem> {
        let Some(TeacherConfig { model, system, examples, .. }) = file.teacher.clone() else {
            return Ok(None);
        };
        let wrong = |key: &str, problem: &str| Err(KeyProblem::new(key, problem));
        if file.sft.is_some() {
            return wrong(
                "teacher",
                "cannot be combined with [sft]: a teacher judges what the policy samples",
            );
        }
        if file.trainer.kl_penalty_coef.is_some() {
            return wrong(
                "trainer.kl_penalty_coef",
                "cannot be combined with [teacher], whose coefficient is teacher.coef",
            );
        }
        if file.trainer.kl_reference.as_ref().is_some_and(|given| *given != WeightsChoice::default()) {
            return wrong(
                "trainer.kl_reference",
                "cannot be combined with [teacher], which is the reference",
            );
        }
        let model = match model.as_deref() {
            None | Some("base") => TeacherModel::Base,
            Some("") => {
                return wrong("teacher.model", "is empty: leave it out for the base model of the run");
            }
            Some(path) if path.starts_with("tinker://") => TeacherModel::Saved(path.into()),
            Some(url) if url.contains("://") => {
                return wrong(
                    "teacher.model",
                    "is an address, and a teacher is a model of the run's service: name it",
                );
            }
            Some(name) => TeacherModel::Other(name.into()),
        };
        if model == TeacherModel::Base && system.is_none() && examples.is_none() {
            return wrong(
                "teacher",
                "would teach what the policy begins with: name another `model`, or give it a `system` text or `examples`",
            );
        }
        if matches!(model, TeacherModel::Other(_)) && file.budget.max_usd.is_some() {
            return wrong(
                "budget.max_usd",
                "cannot be combined with a teacher of another model, whose tokens are not counted",
            );
        }
        Ok(Some(Self { model, system, examples }))
    }

    /// What it is, and what it reads; `base` is the base model of the run.
    #[must_use]
    pub fn describe(&self, base: &str) -> String {
        let model = match &self.model {
            TeacherModel::Base => base,
            TeacherModel::Saved(name) | TeacherModel::Other(name) => name,
        };
        let system = self.system.iter().map(|_| "instructions".to_owned());
        let examples = self.examples.iter().map(|file| format!("the examples in {}", file.display()));
        let reads: Vec<String> = system.chain(examples).collect();
        match reads.is_empty() {
            true => model.to_owned(),
            false => format!("{model}, which also reads {}", reads.join(" and ")),
        }
    }

    /// Sets how a batch is trained: on the drift from the teacher, and on rewards only if the config says so.
    pub(super) fn adapt(config: &TeacherConfig, batch: &mut BatcherOptions) -> Result<(), KeyProblem> {
        let coef = config.coef.unwrap_or(1.0);
        ensure_number("teacher.coef", coef, coef > 0.0 && coef <= 1e3, "be above 0 and at most 1000")?;
        batch.kl_penalty = coef as f32;
        batch.rewards = config.rewards.unwrap_or(false);
        if batch.constant != ConstantGroups::Keep {
            let problem = "must be \"keep\" with [teacher], which teaches groups of equal rewards, too";
            return Err(KeyProblem::new("trainer.constant_groups", problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::tests::{SMALL, plan};

    #[test]
    fn a_teacher_teaches_alone_unless_rewards_are_added() {
        let of = |text: &str| plan(&format!("{SMALL}[teacher]\n{text}"), &[], &[]).unwrap();
        let alone = of("system = \"Think.\"");
        assert_eq!(alone.teacher.as_ref().unwrap().model, TeacherModel::Base);
        assert_eq!((alone.pipeline.batch.kl_penalty, alone.pipeline.batch.rewards), (1.0, false));
        let beside = of("model = \"./larger\"\ncoef = 0.5\nrewards = true");
        assert_eq!(beside.teacher.unwrap().model, TeacherModel::Other("./larger".into()));
        assert_eq!((beside.pipeline.batch.kl_penalty, beside.pipeline.batch.rewards), (0.5, true));
    }

    #[test]
    fn what_cannot_teach_is_refused_by_its_key() {
        for (text, problem) in [
            ("[teacher]", "`teacher` would teach what the policy begins with"),
            ("[teacher]\nmodel = \"https://x\"", "`teacher.model` is an address"),
            ("[teacher]\nmodel = \"\"", "`teacher.model` is empty"),
            ("[teacher]\nsystem = \"s\"\ncoef = 0", "`teacher.coef` is 0; it must be above 0"),
            (
                "[teacher]\nsystem = \"s\"\n[trainer]\nkl_penalty_coef = 0.1",
                "whose coefficient is teacher.coef",
            ),
            (
                "[teacher]\nsystem = \"s\"\n[trainer]\nconstant_groups = \"drop\"",
                "`trainer.constant_groups` must be \"keep\"",
            ),
        ] {
            let error = plan(&format!("{SMALL}{text}"), &[], &[]).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
