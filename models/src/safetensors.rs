//! Reads the tensors of one or several `*.safetensors` files.
//!
//! Only headers are kept in memory. Offsets are checked against the file before a tensor is read.

use crate::bounded_file::{BoundedFile, read_small};
use crate::error::ModelError;
use crate::tensor_type::TensorType;
use ::safetensors::Dtype;
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
    pub(crate) shape: Vec<usize>,
    file: usize,
    dtype: Dtype,
    offset: u64,
    len: u64,
}

#[derive(Deserialize)]
struct SafetensorsIndex {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct SafetensorsEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
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
        let header: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&bytes.read(8, len, "the header")?)
                .map_err(|e| damaged(format!("the header is not JSON: {e}")))?;
        let data = 8 + len;
        for (name, value) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let entry: SafetensorsEntry =
                serde_json::from_value(value).map_err(|e| damaged(format!("tensor `{name}`: {e}")))?;
            let (start, end) = entry.data_offsets;
            let len = end.checked_sub(start);
            let expected = entry
                .shape
                .iter()
                .try_fold(entry.dtype.bitsize(), |product, size| product.checked_mul(*size))
                .map(|bits| (bits / 8) as u64);
            let inside = data.checked_add(end).is_some_and(|end| end <= bytes.len());
            let (Some(len), true) = (len.filter(|len| Some(*len) == expected), inside) else {
                return Err(damaged(format!(
                    "tensor `{name}` of shape {:?} and type {:?} cannot lie at bytes {start} to {end} of the data; \
                     the file has {} bytes",
                    entry.shape,
                    entry.dtype,
                    bytes.len()
                )));
            };
            let file = self.files.len();
            let tensor =
                SafetensorsTensor { shape: entry.shape, file, dtype: entry.dtype, offset: data + start, len };
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
        let (bytes, _) = &self.files[tensor.file];
        let kind = match tensor.dtype {
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::Bf16,
            other => {
                let reason = format!("tensor `{name}` has type {other:?}; F32, F16 and BF16 are read");
                return Err(ModelError::unsupported(bytes.path(), reason));
            }
        };
        Ok(kind.decode(&bytes.read(tensor.offset, tensor.len, name)?))
    }

    /// Every file with the length of its header.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&BoundedFile, u64)> {
        self.files.iter().map(|(bytes, header)| (bytes, *header))
    }
}
