//! `minds-actors report`: a run folder as a page for people, or its curves as a picture.

use super::say;
use crate::cli::{self, Format};
use crate::exit::{Exit, Fault, OrExit};
use crate::report::{self, Source};
use anyhow::Context as _;
use indicatif::HumanBytes;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Runs the command.
///
/// # Errors
/// The folder is none of a run (2), or the report cannot be made or written (1).
pub fn run(command: &cli::Report) -> Result<(), Fault> {
    let source = Source::read(&command.folder).or_exit(Exit::Config)?;
    let (bytes, name) = match command.format {
        Format::Html => (report::html(&source, command.seed).map(String::into_bytes), "report.html"),
        Format::Png => (report::png(&source), "report.png"),
    };
    let bytes = bytes.context("the report could not be made").or_exit(Exit::Failed)?;
    if command.output.as_deref() == Some(Path::new("-")) {
        return std::io::stdout()
            .write_all(&bytes)
            .context("failed to write the report")
            .or_exit(Exit::Failed);
    }
    let path: PathBuf = command.output.clone().unwrap_or_else(|| command.folder.join(name));
    let written = fs::write(&path, &bytes);
    written.with_context(|| format!("failed to write {}", path.display())).or_exit(Exit::Failed)?;
    say!("report       {}, {}", path.display(), HumanBytes(bytes.len() as u64));
    for note in &source.notes {
        say!("note         {note}");
    }
    Ok(())
}
