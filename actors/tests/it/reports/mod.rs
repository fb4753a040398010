//! Faults that users of other systems of this kind have reported, each as a small run that would show it here.
//!
//! The name of a test begins with the kind of the fault: a silent death, a wait cycle, a leak of credits, a version
//! that goes back, a resume that loses or repeats, a poisoned item, a broken group, a non-finite number, a buffer that
//! loses, memory that only grows, a missing time limit, an end of data, a wrong score in silence. More of wrong
//! versions is in `flow.rs` and `pace.rs`, other resumes are in `kills.rs`.

mod data;
mod flow;
