//! Jobs over a real broker: what they bring back, and what failures cost. Real time, for the broker has its own clock.

mod failures;
mod jobs;
mod kit;
