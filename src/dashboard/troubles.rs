//! What the process warns of, for the list of events.
//!
//! A warning costs whoever gives it a short lock; the dashboard fetches them once a second. What comes again and again
//! from one place of the program is told once a minute, with its number, so that it hides nothing else.

use super::hub::Level;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Time in which one kind of warning is told once.
const QUIET: Duration = Duration::from_secs(60);

/// Bytes of a warning that are kept.
const MOST: usize = 2000;

static HEARD: LazyLock<Mutex<Troubles<Identifier>>> = LazyLock::new(Mutex::default);

/// Listens to the log: to its warnings and errors.
pub struct Listener;

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            _ => return,
        };
        let mut words = Words::default();
        event.record(&mut words);
        let mut heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
        heard.add(event.metadata().callsite(), level, words.whole(), Instant::now());
    }
}

/// What is to be told by now; at the `end`, all that is left.
pub(super) fn due(end: bool) -> Vec<(Level, String)> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now(), end)
}

/// Warnings by their kinds, which are places of the program, so that there are not many.
struct Troubles<K> {
    kinds: HashMap<K, Trouble>,
}

impl<K> Default for Troubles<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new() }
    }
}

/// One kind.
struct Trouble {
    level: Level,
    /// The newest.
    text: String,
    /// So many that are not told.
    untold: u64,
    /// When the newest came.
    at: Instant,
    told: Option<Instant>,
}

impl<K: Eq + std::hash::Hash> Troubles<K> {
    fn add(&mut self, kind: K, level: Level, text: String, at: Instant) {
        let told = None;
        let trouble =
            self.kinds.entry(kind).or_insert(Trouble { level, text: String::new(), untold: 0, at, told });
        (trouble.text, trouble.at) = (text, at);
        trouble.untold += 1;
    }

    /// In the order in which they came.
    fn due(&mut self, now: Instant, end: bool) -> Vec<(Level, String)> {
        let is_due = |trouble: &&mut Trouble| {
            let is_quiet = trouble.told.is_none_or(|told| now - told >= QUIET);
            trouble.untold > 0 && (end || is_quiet)
        };
        let mut due: Vec<&mut Trouble> = self.kinds.values_mut().filter(is_due).collect();
        due.sort_by_key(|trouble| trouble.at);
        due.into_iter().map(|trouble| trouble.tell(now)).collect()
    }
}

impl Trouble {
    fn tell(&mut self, now: Instant) -> (Level, String) {
        self.told = Some(now);
        let text = match std::mem::take(&mut self.untold) {
            1 => self.text.clone(),
            number => format!("{} · {number} of this kind, the last one shown", self.text),
        };
        (self.level, text)
    }
}

/// A record's message, and its fields as `name=value`.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let written = match field.name() {
            "message" => self.message.write_fmt(value),
            // Where a record of the `log` crate comes from.
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

impl Visit for Words {
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
    fn one_kind_is_told_at_once_and_then_once_a_minute_with_its_number() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let due = |troubles: &mut Troubles<u8>, seconds, end| {
            troubles.due(at(seconds), end).into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        troubles.add(1, Level::Warn, "lost a".into(), at(0));
        assert_eq!(due(&mut troubles, 0, false), ["lost a"]);
        troubles.add(1, Level::Warn, "lost b".into(), at(1));
        troubles.add(2, Level::Error, "away".into(), at(2));
        troubles.add(1, Level::Warn, "lost c".into(), at(3));
        assert_eq!(due(&mut troubles, 4, false), ["away"], "another kind does not wait");
        assert_eq!(due(&mut troubles, 59, false), Vec::<String>::new());
        assert_eq!(due(&mut troubles, 60, false), ["lost c · 2 of this kind, the last one shown"]);
        assert_eq!(due(&mut troubles, 600, false), Vec::<String>::new(), "nothing is told twice");
        troubles.add(1, Level::Warn, "lost d".into(), at(600));
        troubles.due(at(600), false);
        troubles.add(1, Level::Warn, "lost e".into(), at(601));
        assert_eq!(due(&mut troubles, 602, true), ["lost e"], "at the end nothing is kept back");
    }

    #[test]
    fn warnings_are_heard_with_their_fields_and_other_words_are_not() {
        let log = tracing_subscriber::registry().with(Listener);
        tracing::subscriber::with_default(log, || {
            tracing::info!("a step of this test");
            tracing::warn!(step = 7, name = "kl", "far from those that play");
        });
        let told = due(true);
        let warned = (Level::Warn, "far from those that play step=7 name=kl".to_owned());
        assert!(told.contains(&warned), "{told:?}");
        assert!(told.iter().all(|(_, text)| !text.contains("a step of this test")), "{told:?}");
    }
}
