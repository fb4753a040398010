//! The one terminal of the process: lines, the log, and the bars of a run, so that none of them tears another.
//!
//! Lines go to standard output, the log and the bars to standard error. While bars are shown, both kinds of text are
//! written above them. Where the log is JSON, a run's lines are part of it, so that everything can be read by a machine.

use console::Term;
use indicatif::{
    HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike,
};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

/// How a process talks.
#[derive(Clone, Default)]
enum Voice {
    /// Lines as they are.
    #[default]
    Plain,
    /// Lines as log records.
    Logged,
    /// Lines above bars.
    Bars(MultiProgress),
}

static VOICE: RwLock<Voice> = RwLock::new(Voice::Plain);

fn voice() -> Voice {
    VOICE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn talk(voice: Voice) {
    *VOICE.write().unwrap_or_else(PoisonError::into_inner) = voice;
}

/// Text of others as it may be shown: control characters, with which it could play tricks on a terminal, in words.
#[must_use]
pub fn tame(text: &str) -> Cow<'_, str> {
    let tricks = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(tricks) {
        return text.into();
    }
    text.chars()
        .flat_map(|c| if tricks(c) { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect::<String>()
        .into()
}

/// Writes a line to standard output. A reader that has gone must not end a run, so a failure is not one.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let text = tame(&text);
    let write = || drop(writeln!(io::stdout(), "{text}"));
    match voice() {
        Voice::Plain => write(),
        Voice::Logged => text.lines().for_each(|line| tracing::info!("{line}")),
        Voice::Bars(bars) => bars.suspend(write),
    }
}

/// Whether lines go into the log.
pub fn is_logged() -> bool {
    matches!(voice(), Voice::Logged)
}

/// Lines go into the log from now on.
pub fn log_lines() {
    talk(Voice::Logged);
}

/// Writes a line to standard error; a failure is none here either.
pub fn note(text: fmt::Arguments<'_>) {
    drop(writeln!(Log, "{}", tame(&text.to_string())));
}

/// Standard error for the log. Whoever read it may have gone: what cannot be written is as good as written, for the log
/// would tell of the failure on standard error.
pub struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let written = match voice() {
            Voice::Bars(bars) => bars.suspend(|| io::stderr().write(text)),
            _ => io::stderr().write(text),
        };
        Ok(written.unwrap_or(text.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(io::stderr().flush());
        Ok(())
    }
}

/// How often bars are drawn.
const DRAWN_PER_SECOND: u8 = 20;

/// A terminal that may be closed while bars are on it: they take a failure for a fault in the program, and it is none.
#[derive(Debug)]
struct Calm(Term);

impl TermLike for Calm {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        whatever(self.0.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        whatever(self.0.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        whatever(self.0.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        whatever(self.0.move_cursor_left(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        whatever(self.0.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        whatever(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        whatever(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        whatever(self.0.flush())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what bars draw on gives results")]
fn whatever(done: io::Result<()>) -> io::Result<()> {
    drop(done);
    Ok(())
}

/// The bars of a run: its steps, and below them how the line is doing.
pub struct Bars {
    steps: ProgressBar,
    line: ProgressBar,
}

impl Bars {
    /// Shows them, if there is a terminal to show them on and lines do not go into the log.
    #[must_use]
    pub fn show(steps: u64, done: u64) -> Option<Self> {
        let is_terminal = io::stderr().is_terminal() && io::stdout().is_terminal();
        if !is_terminal || is_logged() {
            return None;
        }
        let style = |template: &str| {
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::term_like_with_hz(
            Box::new(Calm(Term::buffered_stderr())),
            DRAWN_PER_SECOND,
        ));
        let steps = bars.add(ProgressBar::new(steps).with_position(done));
        steps.set_style(
            style("{spinner} step {pos} of {len} {wide_bar} {elapsed_precise}{left}")
                .with_key("left", move |state: &ProgressState, to: &mut dyn fmt::Write| {
                    if state.pos() > done {
                        // A bar that cannot be drawn is drawn without it.
                        write!(to, ", {:#} left", HumanDuration(state.eta())).unwrap_or_default();
                    }
                })
                .progress_chars("━╸─"),
        );
        // Steps that were done before are no measure of how fast this is.
        steps.reset_eta();
        steps.enable_steady_tick(Duration::from_millis(250));
        let line = bars.add(ProgressBar::new_spinner().with_style(style("  {wide_msg}")));
        talk(Voice::Bars(bars));
        Some(Self { steps, line })
    }

    /// So many steps are done.
    pub fn step(&self, step: u64) {
        self.steps.set_position(step);
    }

    /// How the line is doing.
    pub fn tell(&self, text: String) {
        self.line.set_message(text);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        talk(Voice::Plain);
        self.steps.finish_and_clear();
        self.line.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_play_tricks_on_a_terminal_is_shown_in_words() {
        assert_eq!(tame("a\tb\nä"), "a\tb\nä");
        assert_eq!(tame("\u{1b}[31mred\r\u{7}\u{9b}2J"), "\\u{1b}[31mred\\r\\u{7}\\u{9b}2J");
    }
}
