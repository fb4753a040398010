//! Everything that happened, one JSON object a line, with the virtual time.

use serde_json::{Map, Value};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// Where events are written, if anywhere.
pub struct EventLog {
    begun: Instant,
    to: Option<Mutex<Box<dyn Write + Send>>>,
}

impl EventLog {
    /// Writes events to `to`; their times count from now.
    #[must_use]
    pub fn new(to: Option<Box<dyn Write + Send>>) -> Self {
        Self { begun: Instant::now(), to: to.map(Mutex::new) }
    }

    /// Seconds since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Writes `{"at": seconds, "event": name, …}`. A full disk does not end a simulation; the caller sees it at the
    /// end, when it flushes.
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
