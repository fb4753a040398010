//! The list of prices that Tinker publishes, with a copy beside the model cache.

use crate::cache::ModelCache;
use crate::fetch;
use std::fs;
use std::path::PathBuf;

/// Address of the list.
pub const PRICE_LIST_URL: &str = "https://tinker-docs.thinkingmachines.ai/tinker/models.json";

/// Name of the copy.
const FILE: &str = "tinker-prices.json";

/// The published list, or its last copy if it cannot be fetched; `offline` sends no request.
///
/// # Errors
/// Why the list cannot be fetched, where there is no copy either.
pub fn price_list(cache: &ModelCache, offline: bool) -> Result<String, String> {
    let copy: Option<PathBuf> = cache.root().ok().map(|root| root.join(FILE));
    let fetched = if offline { Err("no request is sent".into()) } else { fetch::text(PRICE_LIST_URL) };
    match fetched {
        Ok(list) => {
            if let Some(copy) = copy
                && let Err(error) = keep(&copy, &list)
            {
                tracing::debug!(%error, "the list of prices was not kept");
            }
            Ok(list)
        }
        Err(why) => copy
            .and_then(|copy| fs::read_to_string(copy).ok())
            .ok_or_else(|| format!("{why}, and there is no earlier copy")),
    }
}

/// Replaces the copy atomically.
fn keep(copy: &std::path::Path, list: &str) -> std::io::Result<()> {
    if let Some(folder) = copy.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = copy.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, list)?;
    fs::rename(&new, copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_network_the_last_copy_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ModelCache::at(folder.path());
        let error = price_list(&cache, true).unwrap_err();
        assert!(error.contains("no earlier copy"), "{error}");
        keep(&folder.path().join(FILE), "[]").unwrap();
        assert_eq!(price_list(&cache, true).as_deref(), Ok("[]"));
    }
}
