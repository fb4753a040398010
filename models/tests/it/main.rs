//! Integration tests of the model files: what is read is right, what is damaged is refused.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod cache;
#[cfg(feature = "hub")]
mod fetch;
mod folder;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod make;
mod pip;
mod smollm2;
mod tokenizer;
