//! One file per verb. Only here is anything printed.

pub mod models;
pub mod progress;
pub mod run;
