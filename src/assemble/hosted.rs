//! The service that `serve` offers to its clients.

use super::service::model;
use crate::cli::ServeArgs;
use crate::exit::{CommandError, OrExit, ProcessExit};
use minds_core::hosting::HostedService;
use minds_engine::embedded::EmbeddedService;
use minds_engine::runtime::EngineOptions;
use std::sync::Arc;

/// Fetches the model and starts the engine. It refuses sample requests when `max_waiting` of them wait.
///
/// # Errors
/// The model cannot be fetched or read, or the engine cannot start.
pub fn hosted(command: &ServeArgs, max_waiting: usize) -> Result<Arc<dyn HostedService>, CommandError> {
    let (model, tokenizer) = model(&command.model, command.seed)?;
    let options = EngineOptions {
        threads: command.threads,
        kv_bytes: command.kv_cache_mib.get().saturating_mul(1 << 20),
        swap_kv: command.kv,
        max_waiting,
        seed: command.seed,
        checkpoint_dir: Some(command.data.clone()),
        ..EngineOptions::new(command.model.clone())
    };
    let service = EmbeddedService::start(model, Some(tokenizer), &options);
    Ok(Arc::new(service.or_exit(ProcessExit::Unavailable)?))
}
