//! Renderers and environments as the line uses them, over fakes that are scripted in the test.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod dataset;
mod entropy_intuition;
mod ghost_trace;
mod gradient_intuition;
mod harness;
mod number_guessing;
mod prophet;
mod prophet_faults;
mod python;
mod render;
mod self_prediction;
mod support;
mod target_number;
mod templates;
#[path = "../../../tests/it/venv.rs"]
mod venv;
