//! Reports of a run folder: one HTML page, or its main curves as one picture.
//!
//! The page is one self-contained file without scripts. It can be made at any moment of a run and after any end. Nothing
//! is read or written here: [`ReportSource`] and [`ChosenRollouts`] hold what the caller has read.

mod axes;
mod cards;
mod chart;
mod curves;
mod metrics_table;
mod numbers;
mod page;
mod palette;
mod picture;
mod source;
mod summary;
mod text;
mod timeline;
mod tokens;

pub use metrics_table::{MOST_METRICS, MetricsRow, MetricsTable};
pub use page::html;
pub use source::{ChosenRollouts, QuarantineSummary, ReportSource, ReportedConfig, RolloutSelection};

use plotters::drawing::DrawingAreaErrorKind;
use std::error::Error;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The library that draws charts failed.
    #[error("failed to draw a chart")]
    Drawing(#[source] Box<dyn Error + Send + Sync>),
    /// The template of the page failed.
    #[error("failed to write the page")]
    Page(#[from] minijinja::Error),
    /// The encoder of the picture failed.
    #[error("failed to encode the picture")]
    Picture(#[from] png::EncodingError),
}

impl<E: Error + Send + Sync + 'static> From<DrawingAreaErrorKind<E>> for ReportError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self::Drawing(Box::new(error))
    }
}

/// Draws the most informative curves as a PNG.
///
/// # Errors
/// A drawing failed.
pub fn png(source: &ReportSource) -> Result<Vec<u8>, ReportError> {
    picture::png(&curves::telling(source), source.table.steps())
}
