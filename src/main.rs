//! `minds-actors`: parses the command line, runs the command, and turns its result into an exit code.

mod assemble;
mod check;
mod cli;
mod commands;
mod config;
mod exit;
mod init;
mod progress;
mod recommended;
mod regular_file;
mod run_folder;
mod simulate;
mod simulated_service;
mod telemetry;
mod terminal;
mod tracker;
mod tracking;

use clap::Parser;
use cli::{Cli, Command};
use exit::{OrExit as _, ProcessExit};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = init::run_child() {
        return code;
    }
    let cli = Cli::parse();
    telemetry::init(&cli);
    init::allow_open_files();
    let result = match &cli.command {
        Command::Run(command) => commands::run::run(command),
        Command::Check(command) => commands::check::run(command),
        Command::Eval(command) => commands::eval::run(command),
        Command::Envs(command) => commands::envs::run(command),
        Command::Simulate(command) => commands::simulate::run(command),
        Command::Report(command) => commands::report::run(command),
        Command::Track(command) => commands::track::run(command),
        Command::Serve(command) => commands::serve::run(command),
        Command::Worker(command) => commands::worker::run(command),
        Command::Nats(command) => commands::nats::run(command),
        Command::DeadLetters(command) => commands::dead_letters::run(command),
        Command::Models(command) => commands::models::run(command),
        Command::Doctor(command) => commands::doctor::run(command),
        Command::Completions { shell } => commands::shell::completions(*shell),
        Command::Man { dir } => commands::shell::man(dir.as_deref()),
    };
    // The lines of a run and of a worker are beside their result.
    let prints_result = !matches!(cli.command, Command::Run(_) | Command::Worker(_));
    let result = result.and_then(|()| match prints_result {
        true => terminal::written_as_read().or_exit(ProcessExit::Failed),
        false => Ok(()),
    });
    match result {
        Ok(()) => ProcessExit::Done.into(),
        Err(fault) => {
            tracing::error!("{fault}");
            fault.exit.into()
        }
    }
}
