//! Where the key of requests comes from: it is given, or a command prints it.
//!
//! The command is that of the official SDK, `TINKER_CREDENTIAL_CMD`, and runs in a shell. It runs for every exchange of the
//! key for a token. A server without such exchanges is sent what it printed until that is refused. Its text is not an
//! argument of any process, and neither its text nor its output is in an error.

use super::secret::Secret;
use parking_lot::Mutex;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// Environment variable with the command.
pub const CREDENTIAL_COMMAND_ENV: &str = "TINKER_CREDENTIAL_CMD";

/// Prefix of a key that is itself a token: base64 of `{"`.
const TOKEN_PREFIX: &str = "eyJ";

/// Time that the command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs of a command that fails: a run of days must survive a moment without its source of keys.
const COMMAND_RUNS: u32 = 3;

/// Most bytes that the command may print.
const MOST_PRINTED: u64 = 64 << 10;

/// The source of the key.
pub(super) struct Credential {
    key: Option<Secret>,
    command: Option<Secret>,
    /// Pause after a failed run of the command.
    pause: Duration,
    /// What the command printed last.
    printed: Mutex<Option<Secret>>,
    /// Held while the command runs, so that requests share one run.
    running: tokio::sync::Mutex<()>,
}

impl Credential {
    /// A given key is used before the command.
    pub(super) fn new(key: Option<Secret>, command: Option<Secret>, pause: Duration) -> Self {
        Self { key, command, pause, printed: Mutex::default(), running: tokio::sync::Mutex::default() }
    }

    /// Has the command used in the place of a given key, unless that key is a token itself: the server asks for this.
    ///
    /// # Errors
    /// There is no command.
    pub(super) fn prefer_command(&mut self) -> Result<(), String> {
        if self.key.as_ref().is_some_and(|key| key.expose().starts_with(TOKEN_PREFIX)) {
            return Ok(());
        }
        if self.command.is_none() {
            return Err(format!(
                "the server accepts no fixed keys: set {CREDENTIAL_COMMAND_ENV} to a command that prints one"
            ));
        }
        self.key = None;
        Ok(())
    }

    /// The key that requests carry; the command runs if it has not yet.
    ///
    /// # Errors
    /// The command printed no key.
    pub(super) async fn current(&self) -> Result<Option<Secret>, String> {
        match &self.key {
            Some(key) => Ok(Some(key.clone())),
            None => self.renewed(None).await,
        }
    }

    /// A key for an exchange: what the command prints now.
    ///
    /// # Errors
    /// The command printed no key.
    pub(super) async fn fresh(&self) -> Result<Option<Secret>, String> {
        if self.key.is_none() {
            *self.printed.lock() = None;
        }
        self.current().await
    }

    /// A key in the place of a refused one; `None` if there is no other.
    ///
    /// # Errors
    /// The command printed no key.
    pub(super) async fn after(&self, refused: Option<&Secret>) -> Result<Option<Secret>, String> {
        if self.key.is_some() {
            return Ok(None);
        }
        let key = self.renewed(refused).await?;
        Ok(key.filter(|key| Some(key) != refused))
    }

    /// Takes the key out of foreign text.
    pub(super) fn scrub(&self, text: &str) -> String {
        let text = self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.scrub(text));
        self.printed.lock().as_ref().map_or(text.clone(), |key| key.scrub(&text))
    }

    /// What the command printed, if that is not `refused`; else what it prints now.
    async fn renewed(&self, refused: Option<&Secret>) -> Result<Option<Secret>, String> {
        let Some(command) = &self.command else { return Ok(None) };
        let running = self.running.lock().await;
        let known = self.printed.lock().clone();
        if known.is_some() && known.as_ref() != refused {
            return Ok(known);
        }
        let mut runs = 1;
        let printed = loop {
            match print_key(command).await {
                Ok(key) => break key,
                Err(problem) if runs < COMMAND_RUNS => {
                    tracing::warn!("{CREDENTIAL_COMMAND_ENV} {problem}; running it again");
                    runs += 1;
                    sleep(self.pause).await;
                }
                Err(problem) => return Err(format!("{CREDENTIAL_COMMAND_ENV} {problem}")),
            }
        };
        *self.printed.lock() = Some(printed.clone());
        drop(running);
        Ok(Some(printed))
    }
}

/// Runs the command once.
async fn print_key(command: &Secret) -> Result<Secret, String> {
    // The shell reads the command from its environment: arguments can be read by every user of the machine.
    let mut child = Command::new("sh")
        .args(["-c", &format!("eval \"${CREDENTIAL_COMMAND_ENV}\"")])
        .env(CREDENTIAL_COMMAND_ENV, command.expose())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("could not be run: {error}"))?;
    let mut printed = Vec::new();
    let finished = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MOST_PRINTED).read_to_end(&mut printed).await?;
        }
        child.wait().await
    };
    let limit = COMMAND_TIMEOUT.as_secs();
    let status = timeout(COMMAND_TIMEOUT, finished)
        .await
        .map_err(|_| format!("did not end within {limit} s"))?
        .map_err(|error| format!("could not be run: {error}"))?;
    if !status.success() {
        return Err(format!("failed ({status}): run it by hand to see why"));
    }
    let text = String::from_utf8(printed).unwrap_or_default();
    let key = text.trim();
    if key.is_empty() {
        return Err("printed no key".into());
    }
    if key.contains(|c: char| !c.is_ascii_graphic()) {
        return Err("printed more than a key: it must print the key alone, on one line".into());
    }
    Ok(Secret::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(key: Option<&str>, command: Option<&str>) -> Credential {
        Credential::new(key.map(Secret::new), command.map(Secret::new), Duration::ZERO)
    }

    async fn key(credential: &Credential) -> Option<String> {
        credential.current().await.unwrap().map(|key| key.expose().to_owned())
    }

    #[tokio::test]
    async fn the_command_runs_once_until_its_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count").display().to_string();
        let command = format!("echo x >> '{count}'; printf ' tml-key-%d\\n' $(wc -l < '{count}')");
        let credential = credential(None, Some(&command));
        assert_eq!(key(&credential).await.unwrap(), "tml-key-1");
        assert_eq!(key(&credential).await.unwrap(), "tml-key-1");
        let first = Secret::new("tml-key-1");
        let second = credential.after(Some(&first)).await.unwrap().unwrap();
        assert_eq!(second.expose(), "tml-key-2");
        // A request that was refused with the old key at the same time is given the new one.
        assert_eq!(credential.after(Some(&first)).await.unwrap(), Some(second));
        assert_eq!(credential.fresh().await.unwrap().unwrap().expose(), "tml-key-3");
        assert_eq!(credential.scrub("the key tml-key-3 is bad"), "the key *** is bad");
    }

    #[tokio::test]
    async fn a_command_that_fails_once_runs_again() {
        let folder = tempfile::tempdir().unwrap();
        let once = folder.path().join("once").display().to_string();
        let command = format!("test -e '{once}' || {{ touch '{once}'; exit 1; }}; echo tml-late");
        assert_eq!(key(&credential(None, Some(&command))).await.unwrap(), "tml-late");
        let problem = credential(None, Some("exit 1")).current().await.unwrap_err();
        assert!(problem.starts_with("TINKER_CREDENTIAL_CMD failed"), "{problem}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_hangs_is_an_error_that_names_it() {
        let problem = credential(None, Some("sleep 1000")).current().await.unwrap_err();
        assert_eq!(problem, "TINKER_CREDENTIAL_CMD did not end within 30 s");
    }

    #[tokio::test]
    async fn a_given_key_is_used_before_the_command_unless_the_server_wants_the_command() {
        let mut both = credential(Some("tml-given"), Some("echo tml-printed"));
        assert_eq!(key(&both).await.unwrap(), "tml-given");
        assert_eq!(both.after(None).await.unwrap(), None);
        both.prefer_command().unwrap();
        assert_eq!(key(&both).await.unwrap(), "tml-printed");
        let mut token = credential(Some("eyJhbGciOiJub25lIn0.e30."), Some("echo tml-printed"));
        token.prefer_command().unwrap();
        assert_eq!(key(&token).await.unwrap(), "eyJhbGciOiJub25lIn0.e30.");
        let problem = credential(Some("tml-given"), None).prefer_command().unwrap_err();
        assert!(problem.contains("set TINKER_CREDENTIAL_CMD"), "{problem}");
        assert_eq!(key(&credential(None, None)).await, None);
    }

    #[tokio::test]
    async fn what_is_wrong_with_a_command_is_told_without_its_output() {
        for (text, expected) in [
            ("echo tml-secret; exit 3", "failed (exit status: 3): run it by hand to see why"),
            ("true", "printed no key"),
            ("echo tml-secret; echo tml-secret", "printed more than a key"),
            ("no-such-program-of-anybody tml-secret", "failed (exit status: 127)"),
        ] {
            let problem = print_key(&Secret::new(text)).await.unwrap_err();
            assert!(problem.contains(expected) && !problem.contains("secret"), "{problem}");
        }
    }
}
