//! Refuses architectures whose sizes are inconsistent.

use crate::error::ModelError;
use minds_core::architecture::Architecture;
use std::path::Path;

/// Returns the architecture if it is valid; `path` is named in errors.
pub(crate) fn check_architecture(path: &Path, arch: Architecture) -> Result<Architecture, ModelError> {
    // Far above any model of these families; keeps products of two sizes within 2^56.
    const LARGEST: usize = 1 << 28;
    let sizes = [
        ("vocabulary size", arch.vocab),
        ("hidden size", arch.dim),
        ("number of layers", arch.layers),
        ("number of heads", arch.heads),
        ("number of key/value heads", arch.kv_heads),
        ("head size", arch.head_dim),
        ("feed-forward size", arch.ffn),
        ("context length", arch.context),
    ];
    for (what, size) in sizes {
        if !(1..=LARGEST).contains(&size) {
            return Err(ModelError::damaged(path, format!("the {what} is {size}")));
        }
    }
    if arch.layers > 4096 || arch.heads > 1 << 16 {
        return Err(ModelError::damaged(
            path,
            format!("it claims {} layers of {} heads", arch.layers, arch.heads),
        ));
    }
    if !arch.heads.is_multiple_of(arch.kv_heads) {
        let reason = format!("{} key/value heads do not divide {} heads", arch.kv_heads, arch.heads);
        return Err(ModelError::damaged(path, reason));
    }
    if !arch.head_dim.is_multiple_of(2) {
        return Err(ModelError::damaged(path, format!("the head size {} is odd", arch.head_dim)));
    }
    let scaling = arch.rope_scaling.iter();
    let positive =
        scaling.flat_map(|s| [s.factor, s.low_freq_factor, s.high_freq_factor, s.original_context]);
    for number in positive.chain([arch.rope_theta, arch.rms_eps]) {
        if !(number.is_finite() && number > 0.0) {
            return Err(ModelError::damaged(
                path,
                format!("a rope or norm setting is {number}; it must be positive"),
            ));
        }
    }
    if arch.rope_scaling.is_some_and(|s| s.high_freq_factor <= s.low_freq_factor) {
        return Err(ModelError::damaged(path, "high_freq_factor is not above low_freq_factor"));
    }
    Ok(arch)
}
