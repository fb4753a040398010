//! Stands in for the hub in builds without the feature `hub`.

use super::{Failure, Progress, attempt};
use crate::cache::Origin;
use std::path::{Path, PathBuf};

pub(super) fn fetch(
    _name: &str,
    _root: &Path,
    _endpoint: Option<&str>,
    _progress: &Progress,
) -> Result<(PathBuf, Origin), Failure> {
    Err(Failure::Next(attempt("the hub", "this build cannot ask it", "build with the feature `hub`")))
}

pub(super) fn fetch_text(
    _name: &str,
    _root: &Path,
    _endpoint: Option<&str>,
    _progress: &Progress,
) -> Result<PathBuf, Failure> {
    Err(Failure::Next(attempt("the hub", "this build cannot ask it", "build with the feature `hub`")))
}

pub(super) fn forget(_name: &str, _root: &Path) {}
