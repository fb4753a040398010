//! Safetensors files of `f32` tensors.

use super::CheckpointError;
use safetensors::{Dtype, SafeTensors, View, serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Most bytes of a file that are not values.
const HEADER_BYTES: u64 = 16 << 20;

/// A tensor to write.
pub(super) struct F32TensorView<'a> {
    pub(super) shape: Vec<usize>,
    pub(super) values: &'a [f32],
}

impl View for F32TensorView<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Writes a file and makes it durable.
pub(super) fn write_tensors(
    file: &Path,
    tensors: Vec<(String, F32TensorView<'_>)>,
    metadata: HashMap<String, String>,
) -> Result<(), CheckpointError> {
    let bytes = serialize(tensors, Some(metadata)).map_err(|e| CheckpointError::file(file, e.to_string()))?;
    write_file(file, &bytes)
}

/// Writes a file and makes it durable.
pub(super) fn write_file(file: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let write = || {
        let mut out = File::create_new(file)?;
        out.write_all(bytes)?;
        out.sync_all()
    };
    write().map_err(CheckpointError::io("write", file))
}

/// Reads a file of at most `limit` bytes.
pub(super) fn read_file(file: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|f| f.take(limit + 1).read_to_end(&mut bytes));
    read.map_err(|error| match error.kind() {
        // A repaired disk does not bring a missing file back.
        io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => {
            CheckpointError::file(file, error.to_string())
        }
        _ => CheckpointError::io("read", file)(error),
    })?;
    if bytes.len() as u64 > limit {
        return Err(CheckpointError::file(file, format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// Reads a file that holds exactly the tensors `expected`, by name and shape, and passes each to `take`. Returns
/// the metadata.
pub(super) fn read_tensors(
    file: &Path,
    expected: &[(String, Vec<usize>)],
    mut take: impl FnMut(usize, Vec<f32>) -> Result<(), CheckpointError>,
) -> Result<HashMap<String, String>, CheckpointError> {
    let count: usize = expected.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let bytes = read_file(file, (count * size_of::<f32>()) as u64 + HEADER_BYTES)?;
    let damaged = |e: safetensors::SafeTensorError| CheckpointError::file(file, e.to_string());
    let tensors = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    for (index, (name, shape)) in expected.iter().enumerate() {
        let wrong = |why: String| CheckpointError::tensor(file, name, why);
        let tensor = tensors.tensor(name).map_err(|_| wrong("is missing".into()))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(wrong(format!("has the type {:?}, only F32 is read", tensor.dtype())));
        }
        if tensor.shape() != shape {
            return Err(wrong(format!("has the shape {:?}, {shape:?} is needed", tensor.shape())));
        }
        let values: Vec<f32> =
            tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if let Some(position) = values.iter().position(|x| !x.is_finite()) {
            return Err(wrong(format!("is {} at position {position}", values[position])));
        }
        take(index, values)?;
    }
    if tensors.len() != expected.len() {
        let known = |name: &&str| expected.iter().any(|(expected, _)| expected == name);
        let unexpected = tensors.names().into_iter().find(|name| !known(name)).unwrap_or_default().to_owned();
        return Err(CheckpointError::tensor(file, &unexpected, "is not a tensor of this adapter"));
    }
    Ok(header.metadata().clone().unwrap_or_default())
}
