//! `minds-actors completions` and `minds-actors man`: shell completions and manual pages, made from the command line's
//! definition.

use crate::cli::Cli;
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

/// The program's name on the command line.
const NAME: &str = "minds-actors";
/// The program's name as a shell function name.
const PLAIN: &str = "minds_actors";

/// Prints the completions of a shell.
///
/// # Errors
/// Standard output cannot be written to (1).
pub fn completions(shell: Shell) -> Result<(), CommandError> {
    let mut text = Vec::new();
    if shell == Shell::Bash {
        // The bash script is inconsistent for names with a hyphen, so it is generated for one without.
        clap_complete::generate(shell, &mut Cli::command(), PLAIN, &mut text);
        let script = String::from_utf8_lossy(&text).replace(&format!(" {PLAIN}\n"), &format!(" {NAME}\n"));
        return print(script.as_bytes());
    }
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut text);
    print(&text)
}

/// Prints the manual page, or writes one for each command into a folder.
///
/// # Errors
/// The pages cannot be written (1).
pub fn man(folder: Option<&Path>) -> Result<(), CommandError> {
    let Some(folder) = folder else {
        let mut text = Vec::new();
        Man::new(Cli::command()).render(&mut text).or_exit(ProcessExit::Failed)?;
        return print(&text);
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.with_context(|| format!("failed to write into {}", folder.display())).or_exit(ProcessExit::Failed)
}

/// Prints the text. A reader that closes the pipe early is not an error.
fn print(text: &[u8]) -> Result<(), CommandError> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("failed to write to standard output").or_exit(ProcessExit::Failed)
        }
        _ => Ok(()),
    }
}
