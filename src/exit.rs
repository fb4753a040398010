//! The exit codes of `minds-actors`, as `docs/run-folder.md` lists them.

use std::process::ExitCode;

/// Exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProcessExit {
    /// The command succeeded; a run that was interrupted once has saved a checkpoint.
    Done = 0,
    /// The run failed; the first cause is on standard error.
    Failed = 1,
    /// The command line, the config or the run folder is wrong: nothing was started.
    Config = 2,
    /// The model or the service was unavailable.
    Unavailable = 3,
    /// The run was stopped below `[budget] max_usd` and has saved a checkpoint.
    Budget = 4,
    /// Interrupted a second time: exited at once, without saving.
    Interrupted = 130,
}

impl From<ProcessExit> for ExitCode {
    fn from(exit: ProcessExit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with its exit code.
#[derive(Debug)]
pub struct CommandError {
    /// Exit code of the process.
    pub exit: ProcessExit,
    /// The error with its causes.
    pub error: anyhow::Error,
}

impl std::fmt::Display for CommandError {
    /// Writes the error and its causes; a cause that its error repeats is written once. A key written where another
    /// value belongs is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut told = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !told.ends_with(&cause) {
                let colon = if told.is_empty() { "" } else { ": " };
                told.push_str(colon);
                told.push_str(&cause);
            }
        }
        f.write_str(&without_keys(&told))
    }
}

/// Prefix of every key of the hosted service.
const KEY: &str = "tml-";

/// The text with all keys hidden.
fn without_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(KEY) {
        out.push_str(before);
        out.push_str(KEY);
        let end =
            after.find(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c))).unwrap_or(after.len());
        if end > 0 {
            out.push('…');
        }
        rest = &after[end..];
    }
    out + rest
}

/// Attaches an exit code to an error.
pub trait OrExit<T> {
    /// The same result, with this exit code if it is an error.
    ///
    /// # Errors
    /// The error, with its code.
    fn or_exit(self, exit: ProcessExit) -> Result<T, CommandError>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: ProcessExit) -> Result<T, CommandError> {
        self.map_err(|error| CommandError { exit, error: error.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_a_complaint_is_not_repeated() {
        let told = |text: &str| {
            CommandError { exit: ProcessExit::Config, error: anyhow::anyhow!("{text}") }.to_string()
        };
        assert_eq!(
            told("`trainer.seed` is \"tml-aB3_x-9\", and tml-z."),
            "`trainer.seed` is \"tml-…\", and tml-…."
        );
        assert_eq!(told("keys begin with tml-"), "keys begin with tml-");
    }
}
