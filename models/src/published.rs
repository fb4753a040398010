//! What the files of a model say about its use: its size, and the sampling that its publisher recommends.

use crate::cache::ModelCache;
use crate::error::ModelError;
use crate::fetch::kept_text;
use crate::folder::optional_json;
use crate::source::{ModelAvailability, ModelSource, model_availability};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Settings of a model as its files name them. What they leave out, and all that is not on this machine, is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PublishedSettings {
    /// Width of the hidden states.
    pub hidden_size: Option<usize>,
    /// Longest sequence in tokens.
    pub context: Option<usize>,
    /// Sampling temperature of `generation_config.json`.
    pub temperature: Option<f64>,
    /// Share of the probability that `generation_config.json` samples from.
    pub top_p: Option<f64>,
    /// Number of likeliest tokens that `generation_config.json` samples from.
    pub top_k: Option<u64>,
}

impl PublishedSettings {
    /// Reads the files of a model that are on this machine; fetches nothing.
    ///
    /// # Errors
    /// The name is not valid, or a file is damaged.
    pub fn read(name_or_path: &str, cache: &ModelCache) -> Result<Self, ModelError> {
        match model_availability(name_or_path, cache) {
            // A folder with a tokenizer alone is no complete model, and has these files all the same.
            _ if Path::new(name_or_path).is_dir() => Self::of_folder(Path::new(name_or_path)),
            Ok(ModelAvailability::Complete(ModelSource::Folder(folder))) => Self::of_folder(&folder),
            Ok(ModelAvailability::Complete(source)) => {
                let files = source.open()?;
                let shape = files.as_ref().map(|files| files.architecture());
                Ok(Self {
                    hidden_size: shape.map(|shape| shape.dim),
                    context: shape.map(|shape| shape.context),
                    ..Self::default()
                })
            }
            Ok(ModelAvailability::Absent { name, .. }) => {
                let folder: Option<PathBuf> = kept_text(&name, cache);
                folder.map_or_else(|| Ok(Self::default()), |folder| Self::of_folder(&folder))
            }
            Err(error) => Err(error),
        }
    }

    fn of_folder(folder: &Path) -> Result<Self, ModelError> {
        let config = optional_json(&folder.join("config.json"))?.unwrap_or_default();
        let generation = optional_json(&folder.join("generation_config.json"))?.unwrap_or_default();
        // Multimodal models nest the settings of their text model.
        let size = |key: &str| {
            let written = [&config[key], &config["text_config"][key]];
            written.into_iter().find_map(Value::as_u64).and_then(|size| usize::try_from(size).ok())
        };
        // Files for greedy answers keep the other settings, which then mean nothing.
        let samples = generation["do_sample"].as_bool() != Some(false);
        let number = |key: &str| generation[key].as_f64().filter(|_| samples);
        Ok(Self {
            hidden_size: size("hidden_size"),
            context: size("max_position_embeddings"),
            temperature: number("temperature"),
            top_p: number("top_p"),
            top_k: generation["top_k"].as_u64().filter(|_| samples),
        })
    }

    /// The recommended sampling as a text, if there is any: `temperature 0.6, top_p 0.95, top_k 20`.
    #[must_use]
    pub fn sampling(&self) -> Option<String> {
        let temperature = self.temperature.map(|value| format!("temperature {value}"));
        let top_p = self.top_p.map(|value| format!("top_p {value}"));
        let top_k = self.top_k.map(|value| format!("top_k {value}"));
        let parts: Vec<String> = [temperature, top_p, top_k].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The files as `Qwen/Qwen3-8B` has them on the hub, and a multimodal config.
    #[test]
    fn settings_are_read_from_the_files_of_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("config.json", r#"{"hidden_size": 4096, "max_position_embeddings": 40960}"#);
        write(
            "generation_config.json",
            r#"{"do_sample": true, "eos_token_id": [151645, 151643], "temperature": 0.6, "top_k": 20, "top_p": 0.95}"#,
        );
        let cache = ModelCache::at(folder.path().join("cache"));
        let read = || PublishedSettings::read(folder.path().to_str().unwrap(), &cache).unwrap();
        let expected = PublishedSettings {
            hidden_size: Some(4096),
            context: Some(40_960),
            temperature: Some(0.6),
            top_p: Some(0.95),
            top_k: Some(20),
        };
        assert_eq!(read(), expected);
        assert_eq!(read().sampling().as_deref(), Some("temperature 0.6, top_p 0.95, top_k 20"));
        write("config.json", r#"{"text_config": {"hidden_size": 2560}}"#);
        write("generation_config.json", r#"{"do_sample": false, "temperature": 0.6}"#);
        assert_eq!(read(), PublishedSettings { hidden_size: Some(2560), ..PublishedSettings::default() });
        assert_eq!(read().sampling(), None);
        let absent = PublishedSettings::read("Qwen/Qwen3-8B", &cache);
        assert_eq!(absent.unwrap(), PublishedSettings::default());
    }
}
