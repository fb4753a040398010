//! The reference of a run: the base model, saved weights, or a teacher with messages of its own.

use super::ModelService;
use super::pipeline::base_or;
use super::service::service;
use crate::config::RunPlan;
use crate::config::error::ConfigError;
use crate::config::teacher::{TeacherModel, TeacherPlan};
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::Context as _;
use minds_core::chat::Message;
use minds_environments::demonstrations::example_messages;
use minds_stages::scorer::ReferenceModel;

/// Texts whose tokens show whether two models share a tokenizer.
const PROBES: [&str; 3] = ["Hello, world! 0123456789", "  def f(x):\n\treturn x ** 2\n", "Grüße, 世界 🙂"];

/// Opens the service of a teacher that is another model than that of the run.
///
/// # Errors
/// The model or the service is unavailable, or the model has other tokens.
pub fn teacher_service(plan: &RunPlan, ready: &ModelService) -> Result<Option<ModelService>, CommandError> {
    let Some(TeacherPlan { model: TeacherModel::Other(name), .. }) = &plan.teacher else { return Ok(None) };
    let teacher = service(&plan.with_model(name, ready.renderer.name()), None)?;
    let differs = PROBES.iter().any(|text| teacher.tokenizer.encode(text) != ready.tokenizer.encode(text));
    if differs || teacher.renderer.stop() != ready.renderer.stop() {
        let problem = format!(
            "is {name:?}, whose tokens are not those of {}: a teacher gives each sampled token a probability, so it needs the \
             same tokenizer",
            plan.base_model
        );
        return Err(plan.wrong("teacher.model", problem)).or_exit(ProcessExit::Config);
    }
    Ok(Some(teacher))
}

/// What the teacher reads before each conversation.
///
/// # Errors
/// The file of examples cannot be read, or a row is wrong.
pub fn teacher_context(plan: &RunPlan) -> Result<Vec<Message>, ConfigError> {
    let Some(TeacherPlan { system, examples, .. }) = &plan.teacher else { return Ok(Vec::new()) };
    let mut messages: Vec<Message> = system.iter().map(Message::system).collect();
    if let Some(file) = examples {
        let read = example_messages(&file.display().to_string());
        messages.extend(read.map_err(|error| plan.wrong("teacher.examples", format!("is wrong: {error}")))?);
    }
    Ok(messages)
}

/// The reference of the drift penalty, if there is one. `teacher` is the service of [`teacher_service`].
///
/// # Errors
/// The service does not have the weights, or the examples cannot be read.
pub async fn reference(
    plan: &RunPlan,
    ready: &ModelService,
    teacher: Option<&ModelService>,
) -> anyhow::Result<Option<ReferenceModel>> {
    if plan.pipeline.batch.kl_penalty == 0.0 {
        return Ok(None);
    }
    let sampler = match (&plan.teacher, teacher) {
        (Some(_), Some(other)) => {
            other.service.base_sampler().await.context("`teacher.model`: failed to sample from the model")?
        }
        (Some(TeacherPlan { model: TeacherModel::Saved(path), .. }), None) => {
            base_or(plan, ready, Some(path), "teacher.model").await?
        }
        (Some(_), None) => base_or(plan, ready, None, "teacher.model").await?,
        (None, _) => base_or(plan, ready, plan.kl_reference.pinned(), "trainer.kl_reference").await?,
    };
    Ok(Some(ReferenceModel { sampler, context: teacher_context(plan)?.into() }))
}
