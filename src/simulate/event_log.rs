//! Log of all events: one JSON object a line, with its time.

use anyhow::Context as _;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::time::Instant;

/// Writes events as JSON lines, if there is a destination.
pub struct EventLog {
    begun: Instant,
    to: Option<Mutex<Box<dyn Write + Send>>>,
}

impl EventLog {
    /// Creates a log that writes to `to`; times count from now.
    #[must_use]
    pub fn new(to: Option<Box<dyn Write + Send>>) -> Self {
        Self { begun: Instant::now(), to: to.map(Mutex::new) }
    }

    /// Seconds since the log was created, on the clock of the tokio runtime.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Writes `{"at": seconds, "event": name, …}`. A full disk does not end the simulation; the caller gets the error
    /// when it flushes at the end.
    pub fn record<const N: usize>(&self, event: &str, more: [(&str, Value); N]) {
        let Some(to) = &self.to else { return };
        let mut line = Map::new();
        line.insert("at".into(), ((self.elapsed() * 1000.0).round() / 1000.0).into());
        line.insert("event".into(), event.into());
        line.extend(more.map(|(key, value)| (key.to_owned(), value)));
        drop(writeln!(to.lock(), "{}", Value::Object(line)));
    }
}

/// A file of events that its owner can flush while a log writes to it.
pub struct EventFile {
    path: PathBuf,
    file: SharedFile,
}

impl EventFile {
    /// Creates the file, or truncates it.
    ///
    /// # Errors
    /// It cannot be created; the error names it.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(Self { path: path.into(), file: SharedFile(Arc::new(Mutex::new(BufWriter::new(file)))) })
    }

    /// A writer for an [`EventLog`].
    #[must_use]
    pub fn writer(&self) -> Box<dyn Write + Send> {
        Box::new(self.file.clone())
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    /// The file cannot be written; the error names it.
    pub fn flush(&self) -> anyhow::Result<()> {
        let written = self.file.0.lock().flush();
        written.with_context(|| format!("failed to write {}", self.path.display()))
    }
}

#[derive(Clone)]
struct SharedFile(Arc<Mutex<BufWriter<File>>>);

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().flush()
    }
}
