//! Settings of the embedded engine.

use super::weights::SwapKv;
use minds_core::ids::Token;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Settings of the embedded engine. The defaults suit a model of a few hundred million weights on a few cores.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Name of the base model, as checkpoints and [`ServiceInfo`](minds_core::service::ServiceInfo) state it.
    pub base_model: String,
    /// Cores to use; `None` uses all. Sampling and training each have this many threads and the operating system
    /// divides the cores between them; an idle side takes none.
    pub threads: Option<NonZeroUsize>,
    /// Most bytes of keys and values reserved for running requests.
    pub kv_bytes: usize,
    /// Most bytes of keys and values cached from finished prompts, beside `kv_bytes`; 0 caches none.
    pub prefix_bytes: usize,
    /// Most samples in one decode batch.
    pub max_rows: NonZeroUsize,
    /// Most sampling requests waiting to start; further ones are refused until a place is free.
    pub max_waiting: usize,
    /// Seed for requests without one.
    pub seed: u64,
    /// Tokens of [`Stop::ModelDefault`](minds_core::sampling::Stop::ModelDefault); if empty, the tokenizer's.
    pub stop_tokens: Vec<Token>,
    /// What becomes of keys and values when in-flight weights are replaced.
    pub swap_kv: SwapKv,
    /// Where weights are saved; `None` saves nothing.
    pub checkpoint_dir: Option<PathBuf>,
}

impl EngineOptions {
    /// The defaults: all cores, 1 GiB of keys and values, 64 rows.
    #[must_use]
    pub fn new(base_model: impl Into<String>) -> Self {
        Self {
            base_model: base_model.into(),
            threads: None,
            kv_bytes: 1 << 30,
            prefix_bytes: 128 << 20,
            max_rows: const { NonZeroUsize::new(64).expect("64 is not 0") },
            max_waiting: 4096,
            seed: 0,
            stop_tokens: Vec::new(),
            swap_kv: SwapKv::Keep,
            checkpoint_dir: None,
        }
    }
}
