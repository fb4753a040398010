//! Renderers and environments as the line uses them, over fakes that are scripted in the test.

mod prophet;
mod prophet_faults;
mod render;
mod support;
mod target_number;
