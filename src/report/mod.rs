//! Reports of a run folder: one HTML page, or its main curves as one picture.
//!
//! The page is one self-contained file without scripts. It can be made at any moment of a run and after any end; only
//! the page itself is written to the folder. Damaged data is left out and reported on the page.

mod axes;
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
mod text;
mod timeline;
mod tokens;

pub use source::ReportSource;

use minds_core::chat::Tokenizer;
use minds_models::{ModelCache, local_tokenizer};
use std::sync::Arc;

/// Renders the page; `seed` determines which rollouts are drawn at random.
///
/// # Errors
/// A drawing failed.
pub fn html(source: &ReportSource, seed: u64) -> anyhow::Result<String> {
    let chosen = rollouts::choose(&source.files, seed);
    page::html(source, &chosen, reader(source).as_deref())
}

/// Draws the most informative curves as a PNG.
///
/// # Errors
/// A drawing failed.
pub fn png(source: &ReportSource) -> anyhow::Result<Vec<u8>> {
    picture::png(&curves::telling(source), source.table.steps())
}

/// The model's tokenizer, if it is on this machine. Nothing is fetched for a report.
fn reader(source: &ReportSource) -> Option<Arc<dyn Tokenizer>> {
    local_tokenizer(&source.plan.as_ref()?.base_model, &ModelCache::from_env()).ok().flatten()
}
