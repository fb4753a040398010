//! The terminal of the process: coordinates lines, the log, and the bars of a run, so that none corrupts another.
//!
//! Lines go to standard output, the log and the bars to standard error. While bars are shown, both kinds of text are
//! written above them. Where the log is JSON, a run's lines are part of it, so that all output is machine-readable.

use console::Term;
use indicatif::{
    HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike,
};
use minds_core::number::ShortNumber;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Output mode of the process.
#[derive(Clone, Default)]
enum OutputMode {
    /// Prints lines to standard output unchanged.
    #[default]
    Plain,
    /// Writes lines as log records.
    Logged,
    /// Prints lines above the progress bars.
    ProgressBars(MultiProgress),
}

static OUTPUT_MODE: RwLock<OutputMode> = RwLock::new(OutputMode::Plain);

fn output_mode() -> OutputMode {
    OUTPUT_MODE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set_output_mode(mode: OutputMode) {
    *OUTPUT_MODE.write().unwrap_or_else(PoisonError::into_inner) = mode;
}

/// Foreign text that is safe to show: control characters, which could corrupt a terminal, are escaped.
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

/// A number with `digits` digits after the point, or a dash for `None`.
#[must_use]
pub fn number_or_dash(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".into(), |number| format!("{:.digits$}", ShortNumber(number)))
}

/// The first error of a line: its kind, and what it says.
static WRITE_ERROR: OnceLock<(io::ErrorKind, String)> = OnceLock::new();

/// Whether all lines were written so far. For commands whose lines are their result.
///
/// # Errors
/// Standard output is full or was closed by its reader.
pub fn written() -> anyhow::Result<()> {
    match WRITE_ERROR.get() {
        Some((_, error)) => Err(anyhow::anyhow!("failed to write to standard output: {error}")),
        None => Ok(()),
    }
}

/// Whether all lines were written, as [`written`], except that a reader may have closed standard
/// output, as `head` does.
///
/// # Errors
/// Standard output is full or broken in another way.
pub fn written_as_read() -> anyhow::Result<()> {
    match WRITE_ERROR.get() {
        Some((io::ErrorKind::BrokenPipe, _)) => Ok(()),
        _ => written(),
    }
}

/// Writes a line to standard output. An error ends nothing, because a closed reader must not end a run; [`written`]
/// returns it.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let text = escape_controls(&text);
    let write = || {
        if let Err(error) = writeln!(io::stdout(), "{text}") {
            WRITE_ERROR.get_or_init(|| (error.kind(), error.to_string()));
        }
    };
    match output_mode() {
        OutputMode::Plain => write(),
        OutputMode::Logged => text.lines().for_each(|line| tracing::info!("{line}")),
        OutputMode::ProgressBars(bars) => bars.suspend(write),
    }
}

/// Whether lines are written to the log.
pub fn is_logged() -> bool {
    matches!(output_mode(), OutputMode::Logged)
}

/// Writes lines to the log from now on.
pub fn log_lines() {
    set_output_mode(OutputMode::Logged);
}

/// Writes a line to standard error, ignoring errors.
pub fn note(text: fmt::Arguments<'_>) {
    drop(writeln!(StderrWriter, "{}", escape_controls(&text.to_string())));
}

/// Standard error for the log. Its reader may have closed it: write errors are ignored, because the log
/// would report them on standard error.
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

/// Redraws of the bars per second.
const DRAWN_PER_SECOND: u8 = 20;

/// A terminal that may close while bars are shown: hides write errors, which the bars treat as bugs.
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

/// The bars of a run: its steps, and below them the status of the pipeline.
pub struct ProgressBars {
    steps: ProgressBar,
    status: ProgressBar,
}

impl ProgressBars {
    /// Shows the bars, if there is a terminal and lines are not written to the log.
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
                        // If the write fails, the bar is drawn without it.
                        write!(to, ", {:#} left", HumanDuration(state.eta())).unwrap_or_default();
                    }
                })
                .progress_chars("━╸─"),
        );
        // Earlier steps say nothing about the current speed.
        steps.reset_eta();
        steps.enable_steady_tick(Duration::from_millis(250));
        let status = bars.add(ProgressBar::new_spinner().with_style(style("  {wide_msg}")));
        set_output_mode(OutputMode::ProgressBars(bars));
        Some(Self { steps, status })
    }

    /// Sets the number of completed steps.
    pub fn step(&self, step: u64) {
        self.steps.set_position(step);
    }

    /// Sets the status text of the pipeline.
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
    fn a_number_has_its_digits_and_none_is_a_dash() {
        let shown = [Some(2.0 / 3.0), Some(1e300), None].map(|number| number_or_dash(number, 2));
        assert_eq!(shown, ["0.67", "1.00e300", "–"]);
    }

    #[test]
    fn control_characters_are_shown_by_name_on_a_terminal() {
        assert_eq!(escape_controls("a\tb\nä"), "a\tb\nä");
        assert_eq!(escape_controls("\u{1b}[31mred\r\u{7}\u{9b}2J"), "\\u{1b}[31mred\\r\\u{7}\\u{9b}2J");
    }
}
