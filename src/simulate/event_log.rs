//! Log of all events: one JSON object a line, with its time.

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval};

/// Seconds after which an event is in the file when the next one comes.
const FLUSHED_AFTER: f64 = 1.0;

/// Writes events as JSON lines, if there is a file.
pub struct EventLog {
    begun: Instant,
    to: Option<EventFile>,
}

impl EventLog {
    /// Creates a log that writes to a file; times count from now.
    #[must_use]
    pub fn new(to: Option<EventFile>) -> Self {
        Self { begun: Instant::now(), to }
    }

    /// Seconds since the log was created, on the clock of the tokio runtime.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Writes `{"at": seconds, "event": name, …}`. A full disk does not end what is logged; see [`EventFile`].
    pub fn record<const N: usize>(&self, event: &str, more: [(&str, Value); N]) {
        let Some(to) = &self.to else { return };
        let at = self.elapsed();
        let mut object = Map::new();
        object.insert("at".into(), ((at * 1000.0).round() / 1000.0).into());
        object.insert("event".into(), event.into());
        object.extend(more.map(|(key, value)| (key.to_owned(), value)));
        to.write(at, &format!("{}\n", Value::Object(object)));
    }
}

/// A file of events. Cheap to clone; all clones write to the same file.
///
/// The first error of a write is reported in the log of the process when it happens. Later events are written if that is
/// possible again, and [`EventFile::finish`] reports the error once more.
#[derive(Clone)]
pub struct EventFile(Arc<Mutex<OpenEventFile>>);

struct OpenEventFile {
    path: PathBuf,
    file: BufWriter<File>,
    /// Time of the last event before which all were written, in seconds.
    flushed: f64,
    /// The first error, in words.
    failure: Option<String>,
}

impl EventFile {
    /// Creates the file, or truncates it.
    ///
    /// # Errors
    /// It cannot be created; the error names it.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("failed to write {}", path.display()))?;
        let file = BufWriter::new(file);
        Ok(Self(Arc::new(Mutex::new(OpenEventFile { path: path.into(), file, flushed: 0.0, failure: None }))))
    }

    /// Writes what is in memory every second, for as long as the future is polled. For services in real time, where no
    /// event may follow for long.
    pub async fn flush_regularly(&self) -> Infallible {
        let mut ticks = interval(Duration::from_secs_f64(FLUSHED_AFTER));
        loop {
            ticks.tick().await;
            let mut state = self.0.lock();
            let written = state.file.flush();
            state.check(written);
        }
    }

    /// Writes a line about what happened at a time. It may stay in memory for a second.
    fn write(&self, at: f64, line: &str) {
        let mut state = self.0.lock();
        // In one call, so that a line is written as a whole or not at all.
        let mut written = state.file.write_all(line.as_bytes());
        if at - state.flushed >= FLUSHED_AFTER {
            written = written.and_then(|()| state.file.flush());
            state.flushed = at;
        }
        state.check(written);
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// Some events could not be written, now or earlier; the error names the file.
    pub fn finish(&self) -> anyhow::Result<()> {
        let mut state = self.0.lock();
        let written = state.file.flush();
        state.check(written);
        match &state.failure {
            Some(failure) => Err(anyhow::anyhow!("{failure}")),
            None => Ok(()),
        }
    }
}

impl OpenEventFile {
    /// Reports the first error.
    fn check(&mut self, written: io::Result<()>) {
        if let Err(error) = written
            && self.failure.is_none()
        {
            let failure = format!("failed to write {}: {error}; events are missing", self.path.display());
            tracing::error!("{failure}");
            self.failure = Some(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test(start_paused = true)]
    async fn an_error_is_known_when_the_next_event_comes() {
        let file = EventFile::create(Path::new("/dev/full")).unwrap();
        let log = EventLog::new(Some(file.clone()));
        log.record("sample", []);
        assert_eq!(file.0.lock().failure, None, "still in memory");
        tokio::time::advance(Duration::from_secs(1)).await;
        log.record("sampled", []);
        let failure = "failed to write /dev/full: No space left on device (os error 28); events are missing";
        assert_eq!(file.0.lock().failure.as_deref(), Some(failure));
        assert_eq!(file.finish().unwrap_err().to_string(), failure);
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_in_the_file_within_a_second_and_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events");
        let file = EventFile::create(&path).unwrap();
        let log = EventLog::new(Some(file.clone()));
        let events = || std::fs::read_to_string(&path).unwrap().lines().count();
        tokio::time::advance(Duration::from_secs(1)).await;
        log.record("sample", [("samples", 4.into())]);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"at\":1.0,\"event\":\"sample\",\"samples\":4}\n"
        );
        log.record("sampled", []);
        assert_eq!(events(), 1);
        assert!(file.flush_regularly().now_or_never().is_none());
        assert_eq!(events(), 2);
        log.record("cancelled", []);
        file.finish().unwrap();
        assert_eq!(events(), 3);
    }
}
