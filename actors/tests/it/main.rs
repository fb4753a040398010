//! The pipeline against a scripted service and environment, in virtual time on one thread; and, in `remote`, workers
//! behind a NATS server of its own, in real time.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod chaos;
mod deadlines;
mod evaluations;
mod flow;
mod groups;
mod guards;
mod harness;
mod in_flight;
mod kills;
mod meters;
mod outages;
mod pace;
mod remote;
mod reports;
mod scoring;
mod sessions;
mod shadow;
mod steps;
mod stopping;
mod testkit;
mod turns;
mod usage;
