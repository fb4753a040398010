//! The program as a user runs it.

mod command;
mod interrupted;
mod refused;
mod rendered;
mod training;
