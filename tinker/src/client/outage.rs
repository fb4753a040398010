//! Whether the server answers at all: told once when it has been silent for a while, and once when it is back.
//!
//! Requests wait for it on their own ([`super::retry`]); this is for the people who watch.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Silence that is worth a word.
const NOTICE: Duration = Duration::from_secs(15);

/// What is known of the server's silence.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<Silence>>);

struct Silence {
    since: Instant,
    told: bool,
}

/// What is worth telling.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has been silent for so long.
    Silent(Duration),
    /// It is back, after so long.
    Back(Duration),
}

impl Outage {
    /// Enters whether a request, whichever it was, met with an answer; says so if that is worth telling.
    pub(super) fn note(&self, answered: bool) -> Option<Turn> {
        let mut silence = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            return silence
                .take()
                .filter(|silence| silence.told)
                .map(|silence| Turn::Back(silence.since.elapsed()));
        }
        let silence = silence.get_or_insert_with(|| Silence { since: Instant::now(), told: false });
        let lasts = silence.since.elapsed();
        if silence.told || lasts < NOTICE {
            return None;
        }
        silence.told = true;
        Some(Turn::Silent(lasts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silence_and_its_end_are_told_once_each_and_a_short_one_not_at_all() {
        let outage = Outage::default();
        let mut told = Vec::new();
        // Asked every 10 s: silent from 0 to 10, and from 30 to 90.
        for answered in [false, false, true, false, false, false, false, false, false, true, true] {
            told.extend(outage.note(answered));
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert_eq!(told, [Turn::Silent(Duration::from_secs(20)), Turn::Back(Duration::from_secs(60))]);
    }
}
