//! Small models, adapters and data from seeds.

use minds_core::architecture::{Architecture, RopeScaling};
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_engine::adapter::Adapter;
use minds_engine::real::Real;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A Llama with tied head, a Qwen2 (bias, untied) and a Qwen3 (norms of q and k), all with sizes off the grid of 32.
pub fn architectures() -> [(&'static str, Architecture); 3] {
    let base = Architecture {
        vocab: 37,
        dim: 20,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        ffn: 28,
        context: 128,
        ..Architecture::tiny()
    };
    let scaling =
        RopeScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 64.0 };
    [
        ("llama", base.clone()),
        (
            "qwen2",
            Architecture { qkv_bias: true, tied_head: false, rope_scaling: Some(scaling), ..base.clone() },
        ),
        ("qwen3", Architecture { qk_norm: true, head_dim: 10, kv_heads: 4, ..base }),
    ]
}

pub fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Uniform in ±1.
pub fn uniform(random: &mut ChaCha8Rng) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0
}

pub fn tokens(random: &mut ChaCha8Rng, len: usize, vocab: usize) -> Vec<Token> {
    (0..len).map(|_| random.next_u32() % vocab as u32).collect()
}

/// An adapter that has learnt something: `B` is not zero.
pub fn adapter<T: Real>(arch: &Architecture, rank: usize, seed: u64) -> Adapter<T> {
    let mut adapter =
        Adapter::new(arch, &LoraSpec { alpha: 2.0, ..LoraSpec::all_linear(rank, seed) }).unwrap();
    let mut random = random(seed + 100);
    for value in adapter.values_mut() {
        *value += T::from_f64(0.2 * uniform(&mut random));
    }
    adapter
}

/// A datum of `sequence`: its last `trained` targets carry `carrier(position)`.
pub fn datum(
    sequence: &[Token],
    trained: usize,
    loss: Loss,
    mut carrier: impl FnMut(usize) -> f32,
    mut sampled: impl FnMut(usize) -> f32,
) -> Datum {
    let (input, targets) = (sequence[..sequence.len() - 1].to_vec(), sequence[1..].to_vec());
    let first = input.len() - trained;
    let fill = |f: &mut dyn FnMut(usize) -> f32| -> Vec<f32> {
        (0..input.len()).map(|t| if t < first { 0.0 } else { f(t) }).collect()
    };
    let carriers = fill(&mut carrier);
    let inputs = match loss {
        Loss::CrossEntropy => LossInputs::Weights(carriers),
        _ => LossInputs::Policy { logprobs: fill(&mut sampled), advantages: carriers },
    };
    Datum::new(input, targets, inputs).unwrap()
}
