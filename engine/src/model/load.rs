//! Reading the weights of a model by Hugging Face's names.

use super::rope::frequencies;
use super::{DecoderLayer, FusedLinear, Model};
use crate::adapter::{FusedProjection, shape, unit};
use crate::error::EngineError;
use crate::kernel::Panels;
use crate::real::Real;
use minds_core::architecture::Architecture;
use minds_core::lora::Target;
use minds_core::tensor::Tensor;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::convert::Infallible;
use std::error::Error;

impl<T: Real> Model<T> {
    /// Reads all weights through `tensor`, which gives the values of the tensor of that Hugging Face name
    /// (`model.layers.0.self_attn.q_proj.weight`) in Hugging Face's layout (linear layers `[out, in]`).
    ///
    /// # Errors
    /// An unusable architecture, a failing source, or a tensor of another size.
    pub fn load<E: Into<Box<dyn Error + Send + Sync>>>(
        arch: Architecture,
        tensor: &mut dyn FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Self, EngineError> {
        check(&arch)?;
        let mut read = |name: String, expected: usize| {
            let tensor = tensor(&name);
            let tensor = tensor.map_err(|e| EngineError::Tensor { name: name.clone(), source: e.into() })?;
            match tensor.len() {
                len if len == expected => Ok(tensor),
                len => Err(EngineError::TensorLength { name, len, expected }),
            }
        };
        let embedding = read("model.embed_tokens.weight".into(), arch.vocab * arch.dim)?;
        let layers = (0..arch.layers).map(|i| layer(&arch, i, &mut read)).collect::<Result<_, _>>()?;
        let norm = values(read("model.norm.weight".into(), arch.dim)?);
        let untied = match arch.tied_head {
            true => None,
            false => Some(read("lm_head.weight".into(), arch.vocab * arch.dim)?),
        };
        let head = Panels::from_tensor(untied.as_ref().unwrap_or(&embedding), arch.vocab, arch.dim);
        let embedding = values(embedding);
        let untied = untied.map(values);
        Ok(Self { frequencies: frequencies(&arch), arch, embedding, layers, norm, head, untied })
    }

    /// A model of seeded random weights, for tests and for measuring: norms near 1, the rest uniform with the
    /// spread that keeps activations of order 1.
    ///
    /// # Errors
    /// An unusable architecture.
    pub fn random(arch: Architecture, seed: u64) -> Result<Self, EngineError> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let a = arch.clone();
        Self::load(arch, &mut |name| {
            let mut uniform = |len: usize, center: f64, spread: f64| -> Vec<f32> {
                (0..len).map(|_| (center + spread * (2.0 * unit(&mut random) - 1.0)) as f32).collect()
            };
            let matrix = Target::ALL.iter().find(|t| name.contains(&format!(".{}.", t.name())));
            let values = match matrix {
                Some(&target) if name.ends_with(".weight") => {
                    let (input, output) = shape(&a, target);
                    uniform(input * output, 0.0, (3.0 / input as f64).sqrt())
                }
                Some(&target) => uniform(shape(&a, target).1, 0.0, 0.2),
                None if name.contains("embed_tokens") || name.contains("lm_head") => {
                    uniform(a.vocab * a.dim, 0.0, (3.0 / a.dim as f64).sqrt())
                }
                None if name.contains("q_norm") || name.contains("k_norm") => uniform(a.head_dim, 1.0, 0.2),
                None => uniform(a.dim, 1.0, 0.2),
            };
            Ok::<_, Infallible>(values.into())
        })
    }
}

fn values<T: Real>(tensor: Tensor) -> Vec<T> {
    tensor.into_values().into_iter().map(|x| T::from_f64(f64::from(x))).collect()
}

fn layer<T: Real>(
    arch: &Architecture,
    index: usize,
    read: &mut impl FnMut(String, usize) -> Result<Tensor, EngineError>,
) -> Result<DecoderLayer<T>, EngineError> {
    let mut linear = |projection: FusedProjection| {
        let with_bias = arch.qkv_bias && projection == FusedProjection::Qkv;
        let input = shape(arch, projection.targets()[0]).0;
        let output = projection.targets().iter().map(|&t| shape(arch, t).1).sum();
        let (mut matrix, mut bias): (Option<Tensor>, _) = (None, Vec::new());
        for &target in projection.targets() {
            let part = if matches!(projection, FusedProjection::Qkv | FusedProjection::O) {
                "self_attn"
            } else {
                "mlp"
            };
            let name = format!("model.layers.{index}.{part}.{}", target.name());
            let outputs = shape(arch, target).1;
            let rows = read(format!("{name}.weight"), input * outputs)?;
            match &mut matrix {
                Some(matrix) => matrix.append(rows),
                None => matrix = Some(rows),
            }
            if with_bias {
                bias.extend(values::<T>(read(format!("{name}.bias"), outputs)?));
            }
        }
        let matrix = matrix.expect("every projection has a target");
        let panels = Panels::from_tensor(&matrix, output, input);
        Ok(FusedLinear { input, output, panels, rows: values(matrix), bias: with_bias.then_some(bias) })
    };
    let linear = [
        linear(FusedProjection::Qkv)?,
        linear(FusedProjection::O)?,
        linear(FusedProjection::GateUp)?,
        linear(FusedProjection::Down)?,
    ];
    let mut norm = |name: &str, len: usize| -> Result<Vec<T>, EngineError> {
        Ok(values(read(format!("model.layers.{index}.{name}.weight"), len)?))
    };
    Ok(DecoderLayer {
        input_norm: norm("input_layernorm", arch.dim)?,
        post_norm: norm("post_attention_layernorm", arch.dim)?,
        linear,
        qk_norm: match arch.qk_norm {
            true => {
                Some((norm("self_attn.q_norm", arch.head_dim)?, norm("self_attn.k_norm", arch.head_dim)?))
            }
            false => None,
        },
    })
}

fn check(arch: &Architecture) -> Result<(), EngineError> {
    let sizes = [
        ("vocab", arch.vocab),
        ("dim", arch.dim),
        ("layers", arch.layers),
        ("heads", arch.heads),
        ("kv_heads", arch.kv_heads),
        ("head_dim", arch.head_dim),
        ("ffn", arch.ffn),
        ("context", arch.context),
    ];
    let complaint = if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        format!("`{name}` is 0")
    } else if !arch.heads.is_multiple_of(arch.kv_heads) {
        format!("{} heads do not divide among {} key/value heads", arch.heads, arch.kv_heads)
    } else if !arch.head_dim.is_multiple_of(2) {
        format!("the head width {} is odd", arch.head_dim)
    } else {
        return Ok(());
    };
    Err(EngineError::Architecture(complaint))
}
