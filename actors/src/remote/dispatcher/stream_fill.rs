//! How full the stream is.

/// How full the stream is, as far as this run knows.
#[derive(Clone, Copy, Default)]
pub(super) struct StreamFill {
    /// Bytes that the stream stored when it was last asked, and those that this run has published since.
    pub(super) bytes: u64,
    /// Most bytes of jobs; `None` for no limit.
    pub(super) most: Option<u64>,
}

impl StreamFill {
    /// Counts a job of this size, unless it belongs to the room that is left for results.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        // A single job that is larger than the room for jobs must not wait forever.
        let fits = self.most.is_none_or(|most| self.bytes == 0 || self.bytes + bytes <= most);
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}
