//! Collects the warnings and errors of the process for the list of events.
//!
//! Logging a warning takes a short lock; the dashboard fetches the warnings once a second. A warning that repeats from
//! one call site is reported once a minute with its count, so that it does not hide others.

use super::view::EventLevel;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Rate limit per kind of warning.
const QUIET: Duration = Duration::from_secs(60);

/// Maximum number of bytes kept of a warning.
const MOST: usize = 2000;

static WARNINGS: LazyLock<Mutex<WarningDigest<Identifier>>> = LazyLock::new(Mutex::default);

/// Tracing layer that collects warnings and errors.
pub struct WarningLayer;

impl<S: Subscriber> Layer<S> for WarningLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => EventLevel::Error,
            tracing::Level::WARN => EventLevel::Warn,
            _ => return,
        };
        let mut words = EventText::default();
        event.record(&mut words);
        let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.add(event.metadata().callsite(), level, words.whole(), Instant::now());
    }
}

/// Warnings to report now; at the `end`, all pending ones.
pub(super) fn due(end: bool) -> Vec<(EventLevel, String)> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now(), end)
}

/// Warnings by kind. A kind is a call site, so their number is bounded.
struct WarningDigest<K> {
    kinds: HashMap<K, RepeatedWarning>,
}

impl<K> Default for WarningDigest<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new() }
    }
}

/// Pending warnings of one kind.
struct RepeatedWarning {
    level: EventLevel,
    /// Text of the newest warning.
    text: String,
    /// Number of warnings not reported yet.
    pending: u64,
    /// Time of the newest warning.
    at: Instant,
    reported: Option<Instant>,
}

impl<K: Eq + std::hash::Hash> WarningDigest<K> {
    fn add(&mut self, kind: K, level: EventLevel, text: String, at: Instant) {
        let reported = None;
        let warning = self.kinds.entry(kind).or_insert(RepeatedWarning {
            level,
            text: String::new(),
            pending: 0,
            at,
            reported,
        });
        (warning.text, warning.at) = (text, at);
        warning.pending += 1;
    }

    /// Takes the warnings to report, in the order of their times.
    fn due(&mut self, now: Instant, end: bool) -> Vec<(EventLevel, String)> {
        let is_due = |warning: &&mut RepeatedWarning| {
            let is_quiet = warning.reported.is_none_or(|told| now - told >= QUIET);
            warning.pending > 0 && (end || is_quiet)
        };
        let mut due: Vec<&mut RepeatedWarning> = self.kinds.values_mut().filter(is_due).collect();
        due.sort_by_key(|warning| warning.at);
        due.into_iter().map(|warning| warning.report(now)).collect()
    }
}

impl RepeatedWarning {
    fn report(&mut self, now: Instant) -> (EventLevel, String) {
        self.reported = Some(now);
        let text = match std::mem::take(&mut self.pending) {
            1 => self.text.clone(),
            number => format!("{} · {number} of this kind, the last one shown", self.text),
        };
        (self.level, text)
    }
}

/// Message of a log record, and its fields as `name=value`.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let written = match field.name() {
            "message" => self.message.write_fmt(value),
            // Source location of a record of the `log` crate.
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.fields, " {name}={value}"),
        };
        debug_assert!(written.is_ok(), "a string takes all");
    }

    fn whole(mut self) -> String {
        self.message.push_str(&self.fields);
        let fits = (0..=MOST.min(self.message.len())).rev().find(|at| self.message.is_char_boundary(*at));
        self.message.truncate(fits.unwrap_or(0));
        self.message
    }
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt as _;

    #[test]
    fn a_kind_of_warning_is_reported_at_once_and_then_once_a_minute_with_its_count() {
        let mut troubles = WarningDigest::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = |troubles: &mut WarningDigest<u8>, seconds, end| {
            troubles.due(at(seconds), end).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        troubles.add(1, EventLevel::Warn, "lost a".into(), at(0));
        assert_eq!(due(&mut troubles, 0, false), ["lost a"]);
        troubles.add(1, EventLevel::Warn, "lost b".into(), at(1));
        troubles.add(2, EventLevel::Error, "away".into(), at(2));
        troubles.add(1, EventLevel::Warn, "lost c".into(), at(3));
        assert_eq!(due(&mut troubles, 4, false), ["away"], "another kind does not wait");
        assert_eq!(due(&mut troubles, 59, false), Vec::<String>::new());
        assert_eq!(due(&mut troubles, 60, false), ["lost c · 2 of this kind, the last one shown"]);
        assert_eq!(due(&mut troubles, 600, false), Vec::<String>::new(), "nothing is told twice");
        troubles.add(1, EventLevel::Warn, "lost d".into(), at(600));
        troubles.due(at(600), false);
        troubles.add(1, EventLevel::Warn, "lost e".into(), at(601));
        assert_eq!(due(&mut troubles, 602, true), ["lost e"], "at the end nothing is kept back");
    }

    #[test]
    fn warnings_are_recorded_with_their_fields_and_other_events_are_not() {
        let log = tracing_subscriber::registry().with(WarningLayer);
        tracing::subscriber::with_default(log, || {
            tracing::info!("a step of this test");
            tracing::warn!(step = 7, name = "kl", "far from the sampling weights");
        });
        let told = due(true);
        let warned = (EventLevel::Warn, "far from the sampling weights step=7 name=kl".to_owned());
        assert!(told.contains(&warned), "{told:?}");
        assert!(told.iter().all(|(_, text)| !text.contains("a step of this test")), "{told:?}");
    }
}
