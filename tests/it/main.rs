//! The program as a user runs it.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod account;
mod broken;
mod budget;
mod check;
mod command;
mod command_line;
mod contract;
mod dashboard;
mod dataset;
mod distillation;
mod envs;
mod evaluated;
mod failures;
mod gate;
mod generated;
mod hostile;
#[path = "../../tinker/tests/it/kit/http_message.rs"]
mod http_message;
mod import_circles;
mod interrupted;
mod numbers;
mod official_sdk;
mod original;
mod page;
mod pid_one;
mod prometheus;
mod python;
mod python_faults;
mod refused;
mod remote;
mod rendered;
mod report;
mod rollouts;
mod shadow;
mod simulate;
mod simulated_service;
mod supervised;
mod tensorboard;
mod tracking;
mod training;
mod type_names;
mod venv;
mod warm_start;
mod watched;
mod workers;
