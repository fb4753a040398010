//! Views of a run: the live dashboard, the report of a run folder, and event files for TensorBoard.
//!
//! All three show the numbers of [`minds_core::record`]. The dashboard also reads the pipeline's
//! [`Observer`](minds_stages::pipeline::Observer). The caller of the report reads the run folder. This crate depends on
//! neither configs nor the files of a run folder, and no stage waits for it.

mod checkpoint;
pub mod dashboard;
pub mod report;
mod tensorboard;
mod text_stream;

pub use checkpoint::CheckpointSummary;
pub use tensorboard::TensorBoardWriter;
