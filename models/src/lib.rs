//! Model files: names, cache, download, GGUF and Hugging Face folders, tokenizers.
//!
//! [`resolve`] finds or fetches the files of a model by its path or name, and [`ModelFiles`] reads them. A
//! [`ModelFiles`] is always a complete model: its tensors exist in the shapes that its [`Architecture`] needs, under
//! Hugging Face's names and in Hugging Face's layout. A damaged or hostile file is an error that names it, never a
//! panic.
//!
//! [`Architecture`]: minds_core::architecture::Architecture

mod bounded_file;
mod byte_letters;
mod byte_tokenizer;
mod cache;
mod config;
mod error;
mod fetch;
mod folder;
mod gguf;
mod gguf_model;
mod lock;
mod model_files;
mod pretokenizer;
mod price_list;
mod published;
mod registry;
mod safetensors;
mod shape;
mod source;
mod tensor_type;
mod tiktoken;
mod token_text;
mod tokenizer;
mod weights;

pub use byte_tokenizer::ByteTokenizer;
pub use cache::{CachedModel, ModelCache, ModelOrigin};
pub use error::{FetchAttempt, ModelError};
pub use fetch::{FetchProgress, FetchSources, FetchStep};
pub use lock::{FileLock, LockError, check_lock, has_locks};
pub use model_files::ModelFiles;
pub use price_list::{PRICE_LIST_URL, price_list};
pub use published::PublishedSettings;
pub use registry::{KNOWN_MODELS, KnownModel, PythonPackage, TINY_RANDOM, known_model};
pub use source::{
    ModelAvailability, ModelSource, local_tokenizer, model_availability, resolve, resolve_from,
    split_variant, tokenizer,
};
pub use tokenizer::ModelTokenizer;
pub use weights::expected_tensors;
