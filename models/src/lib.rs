//! Model files: names, cache, download, GGUF and Hugging Face folders, tokenizers.
//!
//! [`resolve`] turns what a person writes into files, [`Checkpoint`] reads them. Whoever holds a [`Checkpoint`]
//! holds a model that is whole: its tensors exist in the shapes that its [`Architecture`] needs, under Hugging
//! Face's names and in Hugging Face's layout. A damaged or hostile file is an error that names it, never a panic.
//!
//! [`Architecture`]: minds_core::architecture::Architecture

mod byte_tokenizer;
mod bytes;
mod cache;
mod checkpoint;
mod config;
mod error;
mod fetch;
mod folder;
mod gguf;
mod gguf_model;
mod lock;
mod pretokenizer;
mod quant;
mod registry;
mod safetensors;
mod shape;
mod source;
mod stream;
mod template;
mod tokenizer;
mod weights;

pub use byte_tokenizer::ByteTokenizer;
pub use cache::{Cache, CachedModel, Origin};
pub use checkpoint::Checkpoint;
pub use error::{Attempt, ModelError};
pub use fetch::{Progress, Sources, Step};
pub use lock::{FileLock, LockError, has_locks, look as look_at_lock};
pub use registry::{KNOWN_MODELS, KnownModel, PyPackage, TINY_RANDOM, known_model};
pub use source::{ModelSource, Stock, resolve, resolve_from, stock, stocked_tokenizer, tokenizer};
pub use stream::TextStream;
pub use template::{TemplateError, render_template};
pub use tokenizer::ModelTokenizer;
pub use weights::expected_tensors;
