//! Safe reading of files that are named by others.
//!
//! Only regular files are opened, because a pipe can block and a device has no end. A text is read only if it is not
//! absurdly long.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;

/// Maximum size of a text that is read as a whole, in bytes.
const MOST_TEXT: u64 = 16 << 20;

/// Opens a regular file, or the one that a link leads to.
///
/// # Errors
/// The file does not exist, is not a regular file, or cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked first: opening a pipe blocks until its other end opens.
    regular(path)?;
    File::open(path)
}

/// Metadata of a regular file, or of the one that a link leads to.
///
/// # Errors
/// The file does not exist, or is not a regular file.
pub fn regular(path: &Path) -> io::Result<Metadata> {
    let meta = fs::metadata(path)?;
    match () {
        () if meta.is_file() => Ok(meta),
        () if meta.is_dir() => Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder")),
        () => Err(io::Error::other("it is not a regular file")),
    }
}

/// The text of a regular file of at most 16 MiB, such as a config.
///
/// # Errors
/// As [`open`], or the file is too long or is not text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Bounded, too, where the file is longer than it says, as files of the kernel are.
    open(path)?.take(MOST_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_TEXT {
        let problem = format!("it is longer than {} MiB, the most that is read", MOST_TEXT >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_and_a_link_to_one_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("device")).unwrap();
        std::os::unix::fs::symlink(path("none"), path("dangling")).unwrap();
        assert!(open(&path("file")).is_ok() && open(&path("link")).is_ok());
        let refused = |name: &str| open(&path(name)).unwrap_err();
        assert_eq!(refused("device").to_string(), "it is not a regular file");
        assert_eq!(open(dir.path()).unwrap_err().to_string(), "it is a folder");
        assert_eq!(refused("dangling").kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_text_is_read_only_if_it_is_not_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        let file = File::create(&path).unwrap();
        file.set_len(MOST_TEXT).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, MOST_TEXT);
        // No memory is taken for what is beyond the limit.
        file.set_len(1 << 34).unwrap();
        let refused = read_text(&path).unwrap_err().to_string();
        assert_eq!(refused, "it is longer than 16 MiB, the most that is read");
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path).unwrap_err().to_string(), "it is not text in UTF-8");
    }
}
