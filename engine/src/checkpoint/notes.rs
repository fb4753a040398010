//! The notes that a checkpoint's owner keeps beside the weights.

use super::CheckpointError;
use super::tensors::read_file;
use minds_core::checkpoint::CheckpointNotes;
use std::io::Write as _;
use std::path::Path;

const FILE: &str = "notes.json";
const MOST_BYTES: u64 = 1 << 20;

/// Writes notes into a folder, replacing existing ones. Empty notes take no file.
///
/// # Errors
/// The disk fails.
pub fn write_notes(folder: &Path, notes: &CheckpointNotes) -> Result<(), CheckpointError> {
    let file = folder.join(FILE);
    if *notes == CheckpointNotes::default() && !file.exists() {
        return Ok(());
    }
    let text = serde_json::to_vec(notes).map_err(|e| CheckpointError::file(&file, e.to_string()))?;
    let mut draft =
        tempfile::NamedTempFile::new_in(folder).map_err(CheckpointError::io("make a file in", folder))?;
    draft.write_all(&text).map_err(CheckpointError::io("write", &file))?;
    draft.persist(&file).map_err(|e| CheckpointError::io("write", &file)(e.error))?;
    Ok(())
}

/// Reads the notes of a folder; empty if there is no file.
///
/// # Errors
/// A file that is damaged, or the disk fails.
pub fn read_notes(folder: &Path) -> Result<CheckpointNotes, CheckpointError> {
    let file = folder.join(FILE);
    if !file.exists() {
        return Ok(CheckpointNotes::default());
    }
    let text = read_file(&file, MOST_BYTES)?;
    serde_json::from_slice(&text).map_err(|e| CheckpointError::file(&file, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_can_change_and_may_be_absent() {
        let folder = tempfile::tempdir().unwrap();
        write_notes(folder.path(), &CheckpointNotes::default()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let user_metadata = serde_json::json!({"step": 3}).as_object().cloned();
        for notes in [CheckpointNotes { expires: Some(5), user_metadata }, CheckpointNotes::default()] {
            write_notes(folder.path(), &notes).unwrap();
            assert_eq!(read_notes(folder.path()).unwrap(), notes);
        }
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(read_notes(folder.path()).is_err());
    }
}
