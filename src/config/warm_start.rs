//! `[model] from`: weights that a run starts from in the place of the base model.

use super::error::KeyProblem;
use minds_core::checkpoint::{CheckpointAddress, CheckpointPurpose};
use std::path::PathBuf;

/// Weights to start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmStart {
    /// Where the weights are.
    pub weights: WeightsLocation,
    /// Whether the optimizer continues from where it was saved with them; otherwise it starts afresh.
    pub with_optimizer: bool,
}

/// Where weights are that a run did not train itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsLocation {
    /// On the service, under this path.
    Saved(String),
    /// In a folder: that of a run, which stands for its last checkpoint, or one with an adapter in PEFT's format.
    Folder(PathBuf),
}

impl WarmStart {
    /// The meaning of `from` and `from_optimizer`. Folders are not looked at.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub(super) fn decide(
        from: Option<String>,
        from_optimizer: Option<bool>,
    ) -> Result<Option<Self>, KeyProblem> {
        let Some(from) = from else {
            return match from_optimizer {
                None => Ok(None),
                Some(_) => Err(KeyProblem::new("model.from_optimizer", "has no effect without model.from")),
            };
        };
        let wrong = |problem: String| KeyProblem::new("model.from", problem);
        let weights = if from.starts_with("tinker://") {
            let address: CheckpointAddress =
                from.parse().map_err(|error| wrong(format!("is wrong: {error}")))?;
            if address.kind() == CheckpointPurpose::Sampler {
                let problem = format!(
                    "is {from:?}, which are weights to sample from: name those that can be trained, tinker://{}/weights/…",
                    address.run()
                );
                return Err(wrong(problem));
            }
            WeightsLocation::Saved(from)
        } else if from.is_empty() {
            return Err(wrong("is empty: name a run folder, a tinker:// path or a PEFT folder".into()));
        } else {
            WeightsLocation::Folder(from.into())
        };
        Ok(Some(Self { weights, with_optimizer: from_optimizer.unwrap_or(false) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_a_path_of_the_service_or_a_folder() {
        let decide =
            |from: &str| WarmStart::decide(Some(from.into()), None).map(|start| start.unwrap().weights);
        let path = "tinker://run-1/weights/000020";
        assert_eq!(decide(path).unwrap(), WeightsLocation::Saved(path.into()));
        assert_eq!(decide("outputs/first").unwrap(), WeightsLocation::Folder("outputs/first".into()));
        for (wrong, problem) in [
            ("", "is empty"),
            ("tinker://run-1", "is not a path of weights"),
            ("tinker://run-1/sampler_weights/a", "tinker://run-1/weights/…"),
        ] {
            let found = decide(wrong).unwrap_err();
            assert!(
                found.key == "model.from" && found.problem.contains(problem),
                "{wrong}: {}",
                found.problem
            );
        }
        let alone = WarmStart::decide(None, Some(true)).unwrap_err();
        assert_eq!(alone.key, "model.from_optimizer");
    }
}
