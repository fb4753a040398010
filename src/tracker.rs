//! The experiment trackers that a run can be shown in.

use serde::{Deserialize, Serialize};

/// An experiment tracker with a Python package of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracker {
    /// The hosted service Weights & Biases, or a server of it.
    Wandb,
    /// A server, a database or a folder of MLflow.
    Mlflow,
    /// Trackio of Hugging Face, local or in a Space.
    Trackio,
}

impl Tracker {
    /// Name of the tracker, of its Python package and of its files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Trackio => "trackio",
        }
    }
}
