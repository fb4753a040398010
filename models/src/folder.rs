//! A Hugging Face model folder: config.json, safetensors, tokenizer.json and their companions.

use crate::bounded_file::read_small;
use crate::config::{HuggingFaceConfig, OneOrMany};
use crate::error::ModelError;
use crate::safetensors::SafetensorsShards;
use crate::tiktoken;
use crate::tokenizer::ModelTokenizer;
use minds_core::architecture::Architecture;
use minds_core::chat::ChatTemplate;
use minds_core::ids::Token;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// tokenizer.json of a 256k vocabulary takes some 35 MB.
const MAX_JSON: u64 = 256 << 20;

/// An open model folder: configuration and tensor headers, without the weights.
#[derive(Debug)]
pub(crate) struct ModelFolder {
    pub(crate) path: PathBuf,
    pub(crate) shards: SafetensorsShards,
    pub(crate) config_json: Vec<u8>,
    pub(crate) chat_template: Option<String>,
    pub(crate) stops: Vec<Token>,
    pub(crate) bos: Option<Token>,
}

impl ModelFolder {
    pub(crate) fn open(path: &Path) -> Result<(Self, Architecture), ModelError> {
        let config_path = path.join("config.json");
        if !config_path.is_file() {
            let hint = "a Hugging Face model folder holds config.json, *.safetensors and tokenizer.json";
            return Err(ModelError::missing(&config_path, hint));
        }
        let config_json = read_small(&config_path, MAX_JSON)?;
        let (config, arch) = HuggingFaceConfig::parse(&config_path, &config_json)?;
        let shards = SafetensorsShards::open(path)?;
        let mut stops = generation_stops(path)?;
        stops.extend(config.eos_token_id.into_iter().flat_map(OneOrMany::into_vec));
        let chat_template = chat_template(path)?;
        let folder = Self {
            path: path.to_owned(),
            shards,
            config_json,
            chat_template,
            stops,
            bos: config.bos_token_id,
        };
        Ok((folder, arch))
    }

    /// The tokenizer, with the stops and the start that the files declare.
    pub(crate) fn tokenizer(&self) -> Result<ModelTokenizer, ModelError> {
        tokenizer(&self.path, self.stops.clone(), self.bos)
    }
}

/// Tokenizer of a folder that may lack weights and may have an unsupported architecture.
pub(crate) fn tokenizer_only(path: &Path) -> Result<ModelTokenizer, ModelError> {
    let config = optional_json(&path.join("config.json"))?.unwrap_or_default();
    // Multimodal models nest the settings of their text model in `text_config`.
    let of_text = |key: &str| [&config[key], &config["text_config"][key]].into_iter().find(|v| !v.is_null());
    let ids = |key: &str| -> Result<Vec<Token>, ModelError> {
        let Some(value) = of_text(key) else { return Ok(vec![]) };
        let ids: OneOrMany = serde_json::from_value(value.clone())
            .map_err(|e| ModelError::damaged(&path.join("config.json"), format!("{key}: {e}")))?;
        Ok(ids.into_vec())
    };
    let mut stops = generation_stops(path)?;
    stops.extend(ids("eos_token_id")?);
    tokenizer(path, stops, ids("bos_token_id")?.first().copied())
}

fn tokenizer(folder: &Path, stops: Vec<Token>, bos: Option<Token>) -> Result<ModelTokenizer, ModelError> {
    let config = optional_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let path = folder.join("tokenizer.json");
    let ranks = folder.join("tiktoken.model");
    let tokenizer = if path.is_file() {
        ModelTokenizer::from_json(&path, &read_small(&path, MAX_JSON)?)?
    } else if ranks.is_file() {
        let parts = tiktoken::parts(&ranks, &read_small(&ranks, MAX_JSON)?, &config)?;
        ModelTokenizer::from_parts(&ranks, parts)?
    } else {
        let hint = "the folder has no fast tokenizer; save one with transformers";
        return Err(ModelError::missing(&path, hint));
    };
    let wants_bos = config["add_bos_token"].as_bool();
    let bos = match (wants_bos, tokenizer.declared_bos()) {
        (Some(false), _) => None,
        (Some(true), declared) => declared.or(bos),
        (None, declared) => declared,
    };
    let template =
        chat_template(folder)?.map(|source| ChatTemplate { source, special_tokens: special_tokens(&config) });
    Ok(tokenizer.with_ids(stops, bos).with_template(template))
}

/// The texts that transformers gives a template by name: `bos_token`, `eos_token` and the other roles of a vocabulary.
fn special_tokens(config: &Value) -> BTreeMap<String, String> {
    let fields = config.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    fields.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

fn generation_stops(folder: &Path) -> Result<Vec<Token>, ModelError> {
    let path = folder.join("generation_config.json");
    let generation = optional_json(&path)?;
    let Some(value) = generation.as_ref().map(|g| &g["eos_token_id"]).filter(|v| !v.is_null()) else {
        return Ok(vec![]);
    };
    let ids: OneOrMany = serde_json::from_value(value.clone())
        .map_err(|e| ModelError::damaged(&path, format!("eos_token_id: {e}")))?;
    Ok(ids.into_vec())
}

/// A file of JSON, if it is there.
pub(crate) fn optional_json(path: &Path) -> Result<Option<Value>, ModelError> {
    if !path.is_file() {
        return Ok(None);
    }
    let json = read_small(path, MAX_JSON)?;
    serde_json::from_slice(&json).map(Some).map_err(|e| ModelError::damaged(path, e.to_string()))
}

/// chat_template.jinja (new files), or `chat_template` of tokenizer_config.json: a string, or a list of named ones.
fn chat_template(folder: &Path) -> Result<Option<String>, ModelError> {
    let own_file = folder.join("chat_template.jinja");
    if own_file.is_file() {
        let text = String::from_utf8(read_small(&own_file, MAX_JSON)?)
            .map_err(|e| ModelError::damaged(&own_file, e.to_string()))?;
        return Ok(Some(text));
    }
    let config = optional_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let template = &config["chat_template"];
    let named_default = || {
        let named = template.as_array()?.iter().find(|entry| entry["name"] == "default")?;
        named["template"].as_str()
    };
    Ok(template.as_str().or_else(named_default).map(str::to_owned))
}
