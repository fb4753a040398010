//! The exit codes of `minds-actors`, as `docs/run-folder.md` lists them.

use std::process::ExitCode;

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// What was asked for is done; a run that was interrupted once has saved its state.
    Done = 0,
    /// The run could not go on; the first cause is on standard error.
    Failed = 1,
    /// The command line, the config or the run folder is wrong: nothing was started.
    Config = 2,
    /// The model or the service could not be had.
    Unavailable = 3,
    /// Interrupted a second time: left at once, without saving.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with its exit code.
#[derive(Debug)]
pub struct Fault {
    /// The code.
    pub exit: Exit,
    /// What went wrong, with its causes.
    pub error: anyhow::Error,
}

impl std::fmt::Display for Fault {
    /// The error and its causes; a cause that its error repeats is told once.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut told = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !told.ends_with(&cause) {
                let colon = if told.is_empty() { "" } else { ": " };
                told.push_str(colon);
                told.push_str(&cause);
            }
        }
        f.write_str(&told)
    }
}

/// Says which exit code an error stands for.
pub trait OrExit<T> {
    /// The same result, with this exit code if it is an error.
    ///
    /// # Errors
    /// The error, with its code.
    fn or_exit(self, exit: Exit) -> Result<T, Fault>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, Fault> {
        self.map_err(|error| Fault { exit, error: error.into() })
    }
}
