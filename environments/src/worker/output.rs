//! What user code prints: read as fast as it comes and logged; its last lines are kept for error messages.
//!
//! Nothing that is printed can make the printer wait: lines that come too fast are counted instead of logged, and a
//! line without an end is cut.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;
use tracing::debug;

/// Number of lines kept for error messages.
const KEPT: usize = 50;
/// Maximum length of a line, in bytes.
const LINE: usize = 2000;
/// Maximum number of lines logged per second.
const LOGGED: u32 = 100;

/// The last lines of a process.
#[derive(Clone, Default)]
pub(super) struct OutputTail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl OutputTail {
    /// The last lines, oldest first.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.lock();
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn push(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Reads the stream to its end.
    pub(super) async fn follow(self, worker: Arc<str>, mut stream: impl AsyncRead + Unpin) {
        let mut splitter = LineSplitter::default();
        let mut buffer = vec![0; 1 << 16];
        let mut second = Instant::now();
        let mut logged = 0;
        let mut left_out = 0_u64;
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            splitter.split(&buffer[..count], |line| {
                if second.elapsed() >= Duration::from_secs(1) {
                    if left_out > 0 {
                        debug!(target: "python", %worker, lines = left_out, "lines not logged: too many at once");
                    }
                    (second, logged, left_out) = (Instant::now(), 0, 0);
                }
                if logged < LOGGED {
                    logged += 1;
                    debug!(target: "python", %worker, "{line}");
                } else {
                    left_out += 1;
                }
                self.push(line);
            });
        }
        splitter.finish(|line| self.push(line));
    }
}

/// Splits a stream of bytes into lines.
#[derive(Default)]
struct LineSplitter {
    open: Vec<u8>,
    /// Whether the rest of a line that was cut is being skipped.
    skipping: bool,
}

impl LineSplitter {
    fn split(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if !self.skipping {
                let room = LINE.saturating_sub(self.open.len());
                self.open.extend_from_slice(&piece[..piece.len().min(room)]);
                self.skipping = piece.len() > room;
            }
            if end.is_none() {
                return;
            }
            self.finish(&mut each);
            bytes = &rest[1..];
        }
    }

    fn finish(&mut self, mut each: impl FnMut(String)) {
        if !self.open.is_empty() {
            let cut = if self.skipping { "…" } else { "" };
            each(format!("{}{cut}", String::from_utf8_lossy(&self.open).trim_end()));
        }
        self.open.clear();
        self.skipping = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_and_long_ones_cut() {
        let mut lines = LineSplitter::default();
        let mut found = Vec::new();
        for piece in ["a", "b\nc\n\n", &"x".repeat(LINE), "yyy", "y\nd"] {
            lines.split(piece.as_bytes(), |line| found.push(line));
        }
        lines.finish(|line| found.push(line));
        assert_eq!(found, ["ab", "c", &format!("{}…", "x".repeat(LINE)), "d"]);
    }

    #[tokio::test]
    async fn the_last_fifty_lines_are_kept() {
        let tail = OutputTail::default();
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        tail.clone().follow("w".into(), text.as_bytes()).await;
        let kept = tail.text();
        assert!(kept.starts_with("line 950\n") && kept.ends_with("line 999"), "{kept}");
    }
}
