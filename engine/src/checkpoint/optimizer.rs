//! Moments of the optimizer, named after the matrices they belong to.

use super::CheckpointError;
use super::adapter::matrices;
use super::tensors::{F32TensorView, read_tensors, write_tensors};
use crate::adapter::Adapter;
use crate::optim::AdamState;
use std::collections::HashMap;
use std::path::Path;

const FILE: &str = "optimizer.safetensors";
const STEP: &str = "step";
/// Names as `torch.optim.AdamW` gives them.
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Writes the optimizer state of an adapter into a folder.
///
/// # Errors
/// The disk fails, or the file exists.
pub fn write_optimizer(
    folder: &Path,
    adapter: &Adapter<f32>,
    state: &AdamState<f32>,
) -> Result<(), CheckpointError> {
    // Moments have the order of the adapter's values, so an adapter that holds them knows where each belongs.
    let holders = [&state.m, &state.v].map(|moment| {
        let mut holder = adapter.clone();
        holder.values_mut().copy_from_slice(moment);
        holder
    });
    let mut tensors = Vec::new();
    for (holder, moment) in holders.iter().zip(MOMENTS) {
        for (t, (names, shapes)) in holder.tensors().zip(matrices(holder)) {
            for ((name, shape), values) in names.into_iter().zip(shapes).zip([t.a, t.b]) {
                tensors.push((format!("{name}.{moment}"), F32TensorView { shape, values }));
            }
        }
    }
    let metadata = HashMap::from([(STEP.to_owned(), state.step.to_string())]);
    write_tensors(&folder.join(FILE), tensors, metadata)
}

/// Whether an optimizer state lies beside the adapter in a folder.
#[must_use]
pub fn has_optimizer(folder: &Path) -> bool {
    folder.join(FILE).is_file()
}

/// Reads the optimizer state of an adapter from a folder.
///
/// # Errors
/// A file that is missing, damaged or of another adapter.
pub fn read_optimizer(folder: &Path, adapter: &Adapter<f32>) -> Result<AdamState<f32>, CheckpointError> {
    let file = folder.join(FILE);
    if !has_optimizer(folder) {
        return Err(CheckpointError::file(
            &file,
            "it does not exist, the weights were saved without optimizer",
        ));
    }
    let slots: Vec<_> = adapter.tensors().map(|t| (t.layer, t.target)).collect();
    let mut expected = Vec::new();
    for moment in MOMENTS {
        for (names, shapes) in matrices(adapter) {
            expected.extend(names.into_iter().map(|name| format!("{name}.{moment}")).zip(shapes));
        }
    }
    let mut holders = [adapter.clone(), adapter.clone()];
    let mut a = Vec::new();
    let metadata = read_tensors(&file, &expected, |index, values| {
        if index % 2 == 0 {
            a = values;
            return Ok(());
        }
        let moment = index / 2 / slots.len();
        let slot = index / 2 % slots.len();
        if moment == 1 && a.iter().chain(&values).any(|x| *x < 0.0) {
            return Err(CheckpointError::tensor(&file, &expected[index].0, "has negative squares"));
        }
        let (layer, target) = slots[slot];
        let set = holders[moment].set(layer, target, &a, &values);
        set.map_err(|e| CheckpointError::file(&file, e.to_string()))
    })?;
    let step = metadata.get(STEP).and_then(|step| step.parse().ok());
    let step = step.ok_or_else(|| CheckpointError::file(&file, "it does not say the step"))?;
    let [m, v] = holders.map(|holder| holder.values().to_vec());
    Ok(AdamState { m, v, step })
}
