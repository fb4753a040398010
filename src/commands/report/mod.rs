//! `minds-actors report`: a run folder as an HTML page, or its curves as a picture.

mod source;

use super::print_line;
use crate::cli::{self, ReportFormat};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::chosen_rollouts;
use anyhow::Context as _;
use indicatif::HumanBytes;
use minds_core::chat::Tokenizer;
use minds_models::ModelCache;
use minds_observe::report::{self, ReportSource};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// The folder is not a run folder (2), or the report cannot be made or written (1).
pub fn run(command: &cli::ReportArgs) -> Result<(), CommandError> {
    let mut source = source::read(&command.folder).or_exit(ProcessExit::Config)?;
    let (bytes, name) = match command.format {
        ReportFormat::Html => {
            let rollouts = chosen_rollouts(&command.folder, command.seed, &mut source.notes);
            let page = report::html(&source, &rollouts, tokenizer(&source).as_deref());
            (page.map(String::into_bytes), "report.html")
        }
        ReportFormat::Png => (report::png(&source), "report.png"),
    };
    let bytes = bytes.context("the report could not be made").or_exit(ProcessExit::Failed)?;
    if command.output.as_deref() == Some(Path::new("-")) {
        return std::io::stdout()
            .write_all(&bytes)
            .context("failed to write the report")
            .or_exit(ProcessExit::Failed);
    }
    let path: PathBuf = command.output.clone().unwrap_or_else(|| command.folder.join(name));
    let written = replace(&path, &bytes);
    written.with_context(|| format!("failed to write {}", path.display())).or_exit(ProcessExit::Failed)?;
    print_line!("report       {}, {}", path.display(), HumanBytes(bytes.len() as u64));
    for note in &source.notes {
        print_line!("note         {note}");
    }
    Ok(())
}

/// The model's tokenizer, if it is on this machine. Nothing is fetched for a report.
fn tokenizer(source: &ReportSource) -> Option<Arc<dyn Tokenizer>> {
    let model = &source.settings.as_ref()?.base_model;
    minds_models::local_tokenizer(model, &ModelCache::from_env()).ok().flatten()
}

/// Replaces a file atomically: if the disk is full, the old file remains.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (path, permissions) = match fs::metadata(path) {
        // A pipe or a device cannot be replaced.
        Ok(meta) if !meta.is_file() => return fs::write(path, bytes),
        // A link stays one, and leads to the new file.
        Ok(meta) => (path.canonicalize()?, Some(meta.permissions())),
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
        Err(error) => return Err(error),
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Permissions follow the umask of the process, as for any new file.
    let mut new = tempfile::Builder::new()
        .prefix(".report-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    new.write_all(bytes)?;
    if let Some(permissions) = permissions {
        new.as_file().set_permissions(permissions)?;
    }
    // Some disks report only now that they are full.
    new.as_file().sync_all()?;
    new.persist(path).map(drop).map_err(|error| error.error)
}
