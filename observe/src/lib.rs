//! What shows a run: the live dashboard, the report of a run folder, and event files for TensorBoard.
//!
//! All three show the numbers of [`minds_core::record`]. The dashboard also reads the pipeline's
//! [`Observer`](minds_stages::pipeline::Observer); the report is made of values that its caller has read from a run
//! folder. Nothing here knows configs or the files of a run folder, and no stage waits for anything here.

mod checkpoint;
pub mod dashboard;
pub mod report;
mod tensorboard;
mod text_stream;

pub use checkpoint::CheckpointSummary;
pub use tensorboard::TensorBoardWriter;
