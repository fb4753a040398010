//! Jobs over a real broker, with and without failures. These tests use real time, because the broker has its own clock.

mod failures;
mod jobs;
mod kit;
