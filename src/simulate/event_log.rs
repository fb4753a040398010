//! Log of all events: one JSON object a line, with the virtual time.

use serde_json::{Map, Value};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
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

    /// Virtual seconds since the log was created.
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
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        drop(writeln!(to, "{}", Value::Object(line)));
    }
}
