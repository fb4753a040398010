//! Positioned reads from a file whose length is known.
//!
//! No read passes the end of the file and no buffer is larger than the file, whatever a header claims.

use crate::error::ModelError;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// An open file whose reads are checked against its length.
#[derive(Debug)]
pub(crate) struct BoundedFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl BoundedFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let io = |e| ModelError::io("open", path, e);
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        Ok(Self { path: path.to_owned(), file, len })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads `len` bytes from `offset`; `what` names them in the error.
    pub(crate) fn read(&self, offset: u64, len: u64, what: &str) -> Result<Vec<u8>, ModelError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        let (Some(_), Ok(size)) = (end, usize::try_from(len)) else {
            return Err(ModelError::damaged(
                &self.path,
                format!("{what} should be {len} bytes at {offset}, the file has {} bytes", self.len),
            ));
        };
        let mut buffer = vec![0; size];
        let read = self.file.read_exact_at(&mut buffer, offset);
        read.map_err(|e| ModelError::io("read", &self.path, e))?;
        Ok(buffer)
    }

    /// Adds the length, the first `head` bytes and 64 evenly spaced samples of the rest to a digest.
    pub(crate) fn sample_into(&self, digest: &mut Sha256, head: u64) -> Result<(), ModelError> {
        const SAMPLES: u64 = 64;
        const SAMPLE: u64 = 4096;
        digest.update(self.len.to_le_bytes());
        digest.update(self.read(0, head.min(self.len), "the header")?);
        let step = (self.len.saturating_sub(head) / SAMPLES).max(SAMPLE);
        let mut at = head;
        while at < self.len {
            digest.update(self.read(at, SAMPLE.min(self.len - at), "the data")?);
            at += step;
        }
        Ok(())
    }
}

/// Reads a whole small file, at most `limit` bytes of it.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let bytes = BoundedFile::open(path)?;
    if bytes.len() > limit {
        let reason = format!("it has {} bytes, more than the {limit} that such a file may have", bytes.len());
        return Err(ModelError::damaged(path, reason));
    }
    bytes.read(0, bytes.len(), "the file")
}

/// Formats bytes as lower-case hexadecimal digits, two per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
