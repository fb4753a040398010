//! Shows the progress of fetching a model: bars on a terminal, lines otherwise.

use crate::terminal;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use minds_models::{FetchProgress, FetchStep};
use std::sync::{Arc, Mutex, PoisonError};

/// A progress handler that draws on standard error.
#[must_use]
pub fn bars() -> FetchProgress {
    let bar: Mutex<Option<ProgressBar>> = Mutex::new(None);
    Arc::new(move |step| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        match step {
            FetchStep::Waiting => tell("another process is fetching the same model, waiting for it"),
            FetchStep::Trying { way, total } => {
                let new = ProgressBar::new(total.unwrap_or(0)).with_style(style());
                new.set_message(format!("fetching from {way}"));
                if new.is_hidden() {
                    tell(&format!("fetching the model from {way}"));
                }
                *bar = Some(new);
            }
            FetchStep::Received { done, total } => {
                if let Some(bar) = &*bar {
                    bar.set_length(total);
                    bar.set_position(done);
                }
            }
            FetchStep::Failed(attempt) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                tell(&attempt.to_string());
            }
            FetchStep::Ready(model) => {
                if let Some(bar) = bar.take() {
                    bar.finish_and_clear();
                }
                tell(&format!("{} is ready ({})", model.name, HumanBytes(model.bytes)));
            }
        }
    })
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn tell(text: &str) {
    terminal::note(format_args!("{}", text.trim()));
}
