//! Reads the tensors of one or several `*.safetensors` files.
//!
//! Only headers are kept in memory. The safetensors crate parses and checks them. Its tensor reader needs whole files
//! in memory, so this module reads the tensors.

use crate::bounded_file::{BoundedFile, read_small};
use crate::error::ModelError;
use crate::tensor_type::TensorType;
use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use minds_core::tensor::Tensor;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// The format's own limit for headers.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a folder.
#[derive(Debug)]
pub(crate) struct SafetensorsShards {
    files: Vec<(BoundedFile, u64)>,
    tensors: HashMap<String, SafetensorsTensor>,
}

/// Location of a tensor in its file.
#[derive(Debug)]
pub(crate) struct SafetensorsTensor {
    file: usize,
    pub(crate) info: TensorInfo,
}

#[derive(Deserialize)]
struct SafetensorsIndex {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsShards {
    /// `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub(crate) fn open(folder: &Path) -> Result<Self, ModelError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        let names = if single.is_file() {
            BTreeSet::from(["model.safetensors".to_owned()])
        } else if index.is_file() {
            let index: SafetensorsIndex = serde_json::from_slice(&read_small(&index, MAX_HEADER)?)
                .map_err(|e| ModelError::damaged(&index, e.to_string()))?;
            index.weight_map.into_values().collect()
        } else {
            let hint = "a model folder holds its weights as model.safetensors, or in shards with an index";
            return Err(ModelError::missing(&single, hint));
        };
        let mut shards = Self { files: Vec::new(), tensors: HashMap::new() };
        for name in names {
            if name.contains(['/', '\\']) {
                return Err(ModelError::damaged(
                    &index,
                    format!("it names the shard `{name}` outside the folder"),
                ));
            }
            shards.add(&folder.join(name))?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        let damaged = |reason: String| ModelError::damaged(path, reason);
        let bytes = BoundedFile::open(path)?;
        let mut len = [0; 8];
        len.copy_from_slice(&bytes.read(0, 8, "the header's length")?);
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER {
            return Err(damaged(format!("it claims a header of {len} bytes")));
        }
        let header: Metadata = serde_json::from_slice(&bytes.read(8, len, "the header")?)
            .map_err(|e| damaged(format!("its header is not one of safetensors: {e}")))?;
        let data = 8 + len;
        let described = header.data_len();
        if data.checked_add(described as u64) != Some(bytes.len()) {
            return Err(damaged(format!(
                "its header takes {data} bytes and describes {described} bytes of tensors, the file has {} bytes",
                bytes.len()
            )));
        }
        for (name, info) in header.tensors() {
            let tensor = SafetensorsTensor { file: self.files.len(), info: info.clone() };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(damaged(format!("tensor `{name}` is also in another shard")));
            }
        }
        self.files.push((bytes, data));
        Ok(())
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&SafetensorsTensor> {
        self.tensors.get(name)
    }

    /// The tensor's numbers in row-major order.
    pub(crate) fn data(&self, name: &str, tensor: &SafetensorsTensor) -> Result<Tensor, ModelError> {
        let (bytes, header) = &self.files[tensor.file];
        let (start, end) = tensor.info.data_offsets;
        let kind = match tensor.info.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::Bf16,
            other => {
                let reason = format!("tensor `{name}` has type {other:?}; F32, F16 and BF16 are read");
                return Err(ModelError::unsupported(bytes.path(), reason));
            }
        };
        Ok(kind.decode(&bytes.read(header + start as u64, (end - start) as u64, name)?))
    }

    /// Every file with the length of its header.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&BoundedFile, u64)> {
        self.files.iter().map(|(bytes, header)| (bytes, *header))
    }
}
