//! Replaces the hub in builds without the feature `hub`: every fetch fails.

use super::{FetchFailure, FetchProgress, attempt};
use crate::cache::ModelOrigin;
use std::path::{Path, PathBuf};

pub(super) fn fetch(
    _name: &str,
    _root: &Path,
    _endpoint: Option<&str>,
    _progress: &FetchProgress,
) -> Result<(PathBuf, ModelOrigin), FetchFailure> {
    Err(FetchFailure::Next(attempt("the hub", "this build cannot ask it", "build with the feature `hub`")))
}

pub(super) fn fetch_text(
    _name: &str,
    _root: &Path,
    _endpoint: Option<&str>,
    _progress: &FetchProgress,
) -> Result<PathBuf, FetchFailure> {
    Err(FetchFailure::Next(attempt("the hub", "this build cannot ask it", "build with the feature `hub`")))
}

pub(super) fn forget(_name: &str, _root: &Path) {}

pub(super) fn text(_url: &str) -> Result<String, String> {
    Err("this build sends no requests: build with the feature `hub`".into())
}
