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
enum OutputMode {
    /// Lines as they are.
    #[default]
    Plain,
    /// Lines as log records.
    Logged,
    /// Lines above bars.
    ProgressBars(MultiProgress),
}

static OUTPUT_MODE: RwLock<OutputMode> = RwLock::new(OutputMode::Plain);

fn output_mode() -> OutputMode {
    OUTPUT_MODE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_output_mode(mode: OutputMode) {
    *OUTPUT_MODE.write().unwrap_or_else(PoisonError::into_inner) = mode;
}

/// Text of others as it may be shown: control characters, with which it could play tricks on a terminal, in words.
#[must_use]
pub fn escape_controls(text: &str) -> Cow<'_, str> {
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
    let text = escape_controls(&text);
    let write = || drop(writeln!(io::stdout(), "{text}"));
    match output_mode() {
        OutputMode::Plain => write(),
        OutputMode::Logged => text.lines().for_each(|line| tracing::info!("{line}")),
        OutputMode::ProgressBars(bars) => bars.suspend(write),
    }
}

/// Whether lines go into the log.
pub fn is_logged() -> bool {
    matches!(output_mode(), OutputMode::Logged)
}

/// Lines go into the log from now on.
pub fn log_lines() {
    set_output_mode(OutputMode::Logged);
}

/// Writes a line to standard error; a failure is none here either.
pub fn note(text: fmt::Arguments<'_>) {
    drop(writeln!(StderrWriter, "{}", escape_controls(&text.to_string())));
}

/// Standard error for the log. Whoever read it may have gone: what cannot be written is as good as written, for the log
/// would tell of the failure on standard error.
pub struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let written = match output_mode() {
            OutputMode::ProgressBars(bars) => bars.suspend(|| io::stderr().write(text)),
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
struct InfallibleTerminal(Term);

impl TermLike for InfallibleTerminal {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        ignore_failure(self.0.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        ignore_failure(self.0.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        ignore_failure(self.0.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        ignore_failure(self.0.move_cursor_left(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        ignore_failure(self.0.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        ignore_failure(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        ignore_failure(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        ignore_failure(self.0.flush())
    }
}

#[expect(clippy::unnecessary_wraps, reason = "what bars draw on gives results")]
fn ignore_failure(done: io::Result<()>) -> io::Result<()> {
    drop(done);
    Ok(())
}

/// The bars of a run: its steps, and below them how the line is doing.
pub struct ProgressBars {
    steps: ProgressBar,
    status: ProgressBar,
}

impl ProgressBars {
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
            Box::new(InfallibleTerminal(Term::buffered_stderr())),
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
        let status = bars.add(ProgressBar::new_spinner().with_style(style("  {wide_msg}")));
        set_output_mode(OutputMode::ProgressBars(bars));
        Some(Self { steps, status })
    }

    /// So many steps are done.
    pub fn step(&self, step: u64) {
        self.steps.set_position(step);
    }

    /// How the line is doing.
    pub fn set_status(&self, text: String) {
        self.status.set_message(text);
    }
}

impl Drop for ProgressBars {
    fn drop(&mut self) {
        set_output_mode(OutputMode::Plain);
        self.steps.finish_and_clear();
        self.status.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_play_tricks_on_a_terminal_is_shown_in_words() {
        assert_eq!(escape_controls("a\tb\nä"), "a\tb\nä");
        assert_eq!(escape_controls("\u{1b}[31mred\r\u{7}\u{9b}2J"), "\\u{1b}[31mred\\r\\u{7}\\u{9b}2J");
    }
}
