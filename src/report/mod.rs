//! A run folder as one page, or its curves as one picture.
//!
//! The page stands alone: no network, no script, one file. It can be made at any moment of a run and after any end; nothing
//! in the folder is changed but the page itself, which belongs there. What is damaged is told and left out.

mod axes;
mod bounded_lines;
mod cards;
mod chart;
mod curves;
mod numbers;
mod page;
mod palette;
mod picture;
mod rollouts;
mod source;
mod summary;
mod table;
mod text;
mod timeline;
mod tokens;

pub use source::ReportSource;

use minds_core::chat::Tokenizer;
use minds_models::{FetchSources, ModelCache, tokenizer};
use std::sync::Arc;

/// The page; the seed draws the rollouts that are shown at random.
///
/// # Errors
/// A drawing failed.
pub fn html(source: &ReportSource, seed: u64) -> anyhow::Result<String> {
    let chosen = rollouts::choose(&source.files, seed);
    page::html(source, &chosen, reader(source).as_deref())
}

/// The most telling curves, as a PNG.
///
/// # Errors
/// A drawing failed.
pub fn png(source: &ReportSource) -> anyhow::Result<Vec<u8>> {
    picture::png(&curves::telling(source), source.table.steps())
}

/// The model's tokenizer, where it is on this machine. Nothing is fetched for a page.
fn reader(source: &ReportSource) -> Option<Arc<dyn Tokenizer>> {
    let nowhere = FetchSources { hub: false, hub_endpoint: None, python: None };
    let silent = Arc::new(|_| ());
    tokenizer(&source.plan.as_ref()?.base_model, &ModelCache::from_env(), &nowhere, &(silent as _)).ok()
}
