//! `usage.json`: the tokens that the service billed to the run, over all its parts.
//!
//! Unlike metrics, they do not go back to a checkpoint: what a discarded step cost has been paid for.

use anyhow::Context as _;
use minds_stages::usage::usage_meter::UsageCounts;
use std::path::Path;

const FILE: &str = "usage.json";

/// Reads the counts; a run without the file has used nothing.
pub(super) fn read(folder: &Path) -> anyhow::Result<UsageCounts> {
    let path = folder.join(FILE);
    let Some(text) = super::text_of(&path)? else { return Ok(UsageCounts::default()) };
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// Replaces the counts in the run folder.
pub(super) fn write(folder: &Path, counts: &UsageCounts) -> anyhow::Result<()> {
    super::write_whole(&folder.join(FILE), serde_json::to_string(counts)?)
}
