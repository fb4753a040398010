//! The exit codes of `minds-actors`, as `docs/run-folder.md` lists them.

use minds_core::service::{BackendError, DenialReason};
use minds_tinker::client::ClientError;
use std::process::ExitCode;
use thiserror::Error;

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
    /// The service denied the account what it asked for: a key, a permission or credit is missing.
    Account = 5,
    /// Interrupted a second time: exited at once, without saving.
    Interrupted = 130,
}

impl From<ProcessExit> for ExitCode {
    fn from(exit: ProcessExit) -> Self {
        Self::from(exit as u8)
    }
}

/// A request outside a run that was not sent because of the cap.
#[derive(Debug, Error)]
#[error("the next request could pass `[budget] max_usd`: raise it")]
pub struct BudgetReached;

/// The exit code that the causes of an error call for, whatever failed.
fn exit_of(error: &anyhow::Error) -> Option<ProcessExit> {
    if denial(error).is_some() {
        return Some(ProcessExit::Account);
    }
    error.chain().any(|cause| cause.is::<BudgetReached>()).then_some(ProcessExit::Budget)
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
        if let Some(reason) = denial(&self.error) {
            told.push_str("; ");
            told.push_str(advice(reason));
        }
        f.write_str(&without_keys(&told))
    }
}

/// What the account lacks, if a service denied it something.
fn denial(error: &anyhow::Error) -> Option<DenialReason> {
    error.chain().find_map(|cause| match (cause.downcast_ref(), cause.downcast_ref::<ClientError>()) {
        (Some(BackendError::Denied { reason, .. }), _) => Some(*reason),
        (_, Some(client)) => client.denial(),
        _ => None,
    })
}

/// What a user does about it.
fn advice(reason: DenialReason) -> &'static str {
    match reason {
        DenialReason::Key => {
            "set TINKER_API_KEY to a valid key, or TINKER_CREDENTIAL_CMD to a command that prints one, or run \
             `tinker auth login`"
        }
        DenialReason::NoKey => {
            "correct the command, or set TINKER_API_KEY to a valid key, and run the same command again"
        }
        DenialReason::Credit => {
            "add credit to the account and run the same command again: a run resumes from its last checkpoint"
        }
        DenialReason::Permission => {
            "use a key with this permission, or ask an owner of the project for it (TINKER_PROJECT_ID names the project); \
             then run the same command again"
        }
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
    /// The same result, with this exit code if it is an error. A request that the service denied to the account always has
    /// the exit code [`ProcessExit::Account`], and one that the cap did not allow [`ProcessExit::Budget`].
    ///
    /// # Errors
    /// The error, with its code.
    fn or_exit(self, exit: ProcessExit) -> Result<T, CommandError>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: ProcessExit) -> Result<T, CommandError> {
        self.map_err(|error| {
            let error = error.into();
            let exit = exit_of(&error).unwrap_or(exit);
            CommandError { exit, error }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn what_the_account_lacks_has_an_exit_code_and_advice() {
        let denied = |status| ClientError::Denied { what: "a sample".into(), status, detail: "no".into() };
        let backend = Err::<(), _>(BackendError::from(denied(402)));
        let error = backend.context("failed to save").or_exit(ProcessExit::Failed).unwrap_err();
        assert_eq!(error.exit, ProcessExit::Account);
        assert_eq!(
            error.to_string(),
            "failed to save: the service denied the request (the account has no credit): a sample was denied \
             (status 402): no; add credit to the account and run the same command again: a run resumes from its last \
             checkpoint"
        );
        for (status, expected) in [(401, "TINKER_CREDENTIAL_CMD"), (403, "TINKER_PROJECT_ID")] {
            let error = Err::<(), _>(denied(status)).or_exit(ProcessExit::Unavailable).unwrap_err();
            assert_eq!(error.exit, ProcessExit::Account);
            assert!(error.to_string().contains(expected), "{error}");
        }
        let other = Err::<(), _>(BackendError::Lost("gone".into())).or_exit(ProcessExit::Failed).unwrap_err();
        assert_eq!(other.exit, ProcessExit::Failed);
    }

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
