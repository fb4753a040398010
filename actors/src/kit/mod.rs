//! What stages stand on: lanes that block when full, actors that are watched, and a pool for heavy sums.
//!
//! Only this module touches actix's own ways of sending and starting; the reasons are in `docs/mailboxes.md`.

mod board;
mod lane;
mod launch;
mod pool;

pub use board::{Board, StageSnapshot};
pub use lane::{Inlet, LaneGauge, LaneStats, Outlet, Parcel, Room, SendError, Slot, lane};
pub use launch::{Exit, Stage, attend, launch, panic_words, unpanicked};
pub use pool::{CpuPool, PoolError};
