//! `minds-actors`: parses the command line, runs the verb, turns its result into an exit code.

mod assemble;
mod cli;
mod commands;
mod config;
mod dashboard;
mod exit;
mod report;
mod run_folder;
mod simulate;
mod telemetry;
mod terminal;

use clap::Parser;
use cli::{Cli, Command};
use exit::Exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    telemetry::init(&cli);
    let result = match &cli.command {
        Command::Run(command) => commands::run::run(command),
        Command::Eval(command) => commands::eval::run(command),
        Command::Envs(command) => commands::envs::run(command),
        Command::Simulate(command) => commands::simulate::run(command),
        Command::Report(command) => commands::report::run(command),
        Command::Serve(command) => commands::serve::run(command),
        Command::Models(command) => commands::models::run(command),
    };
    match result {
        Ok(()) => Exit::Done.into(),
        Err(fault) => {
            tracing::error!("{fault}");
            fault.exit.into()
        }
    }
}
