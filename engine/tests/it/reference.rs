//! A decoder written a second time, in double precision with plain loops, as the papers state it.

use crate::fixture::{adapter, architectures, datum, random, tokens, uniform};
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use minds_core::lora::Target;
use minds_core::loss::Loss;
use minds_engine::adapter::AdapterWeights;
use minds_engine::model::Model;
use minds_engine::train::{PassOptions, TrainingWorkspace, forward};
use std::collections::HashMap;
use std::convert::Infallible;

type Weights = HashMap<String, Vec<f32>>;

/// Names and sizes as `LlamaForCausalLM`, `Qwen2ForCausalLM` and `Qwen3ForCausalLM` have them.
fn weights(arch: &Architecture, seed: u64) -> Weights {
    let a = arch;
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let mut sizes = vec![
        ("model.embed_tokens.weight".to_string(), a.vocab * a.dim),
        ("model.norm.weight".into(), a.dim),
        ("lm_head.weight".into(), a.vocab * a.dim),
    ];
    for i in 0..a.layers {
        let parts = [
            ("input_layernorm.weight", a.dim),
            ("post_attention_layernorm.weight", a.dim),
            ("self_attn.q_proj.weight", q * a.dim),
            ("self_attn.k_proj.weight", kv * a.dim),
            ("self_attn.v_proj.weight", kv * a.dim),
            ("self_attn.o_proj.weight", a.dim * q),
            ("self_attn.q_proj.bias", q),
            ("self_attn.k_proj.bias", kv),
            ("self_attn.v_proj.bias", kv),
            ("self_attn.q_norm.weight", a.head_dim),
            ("self_attn.k_norm.weight", a.head_dim),
            ("mlp.gate_proj.weight", a.ffn * a.dim),
            ("mlp.up_proj.weight", a.ffn * a.dim),
            ("mlp.down_proj.weight", a.dim * a.ffn),
        ];
        sizes.extend(parts.map(|(name, len)| (format!("model.layers.{i}.{name}"), len)));
    }
    let mut random = random(seed);
    let value = |name: &str, x: f64| if name.contains("norm") { 1.0 + 0.3 * x } else { 0.4 * x };
    sizes
        .into_iter()
        .map(|(name, len)| {
            let values = (0..len).map(|_| value(&name, uniform(&mut random)) as f32).collect();
            (name, values)
        })
        .collect()
}

struct Reference<'a> {
    arch: &'a Architecture,
    weights: &'a Weights,
    adapter: Option<&'a AdapterWeights<f64>>,
}

impl Reference<'_> {
    fn get(&self, name: &str) -> Vec<f64> {
        self.weights[name].iter().map(|x| f64::from(*x)).collect()
    }

    fn linear(&self, layer: usize, part: &str, target: Target, x: &[f64]) -> Vec<f64> {
        let name = format!("model.layers.{layer}.{part}.{}", target.name());
        let product = |w: &[f64], x: &[f64]| -> Vec<f64> {
            w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        let mut y = product(&self.get(&format!("{name}.weight")), x);
        if self.arch.qkv_bias && matches!(target, Target::QProj | Target::KProj | Target::VProj) {
            y.iter_mut().zip(self.get(&format!("{name}.bias"))).for_each(|(y, b)| *y += b);
        }
        if let Some(adapter) = self.adapter {
            let t = adapter.tensors().find(|t| t.layer == layer && t.target == target).unwrap();
            let low = product(t.b, &product(t.a, x));
            let scale = adapter.spec().scale();
            y.iter_mut().zip(low).for_each(|(y, l)| *y += scale * l);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + self.arch.rms_eps).sqrt();
        x.iter().zip(self.get(name)).map(|(x, g)| x / root * g).collect()
    }

    fn rotate(&self, head: &[f64], position: usize) -> Vec<f64> {
        let half = head.len() / 2;
        let mut out = head.to_vec();
        for j in 0..half {
            let mut f = self.arch.rope_theta.powf(-(j as f64) / half as f64);
            if let Some(s) = self.arch.rope_scaling {
                let wavelength = 2.0 * std::f64::consts::PI / f;
                let (low, high) =
                    (s.original_context / s.low_freq_factor, s.original_context / s.high_freq_factor);
                if wavelength > low {
                    f /= s.factor;
                } else if wavelength >= high {
                    let smooth = (s.original_context / wavelength - s.low_freq_factor)
                        / (s.high_freq_factor - s.low_freq_factor);
                    f = (1.0 - smooth) * f / s.factor + smooth * f;
                }
            }
            let (sin, cos) = (position as f64 * f).sin_cos();
            out[j] = head[j] * cos - head[j + half] * sin;
            out[j + half] = head[j + half] * cos + head[j] * sin;
        }
        out
    }

    /// Logprobs of each target.
    fn logprobs(&self, input: &[Token], targets: &[Token]) -> Vec<f64> {
        let a = self.arch;
        let embedding = self.get("model.embed_tokens.weight");
        let mut xs: Vec<Vec<f64>> =
            input.iter().map(|t| embedding[*t as usize * a.dim..][..a.dim].to_vec()).collect();
        for layer in 0..a.layers {
            let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
            for (position, x) in xs.iter().enumerate() {
                let h = self.norm(&format!("model.layers.{layer}.input_layernorm.weight"), x);
                let heads = |target, norm: &str| -> Vec<Vec<f64>> {
                    let y = self.linear(layer, "self_attn", target, &h);
                    let name = format!("model.layers.{layer}.self_attn.{norm}.weight");
                    let normed = |h: &[f64]| if a.qk_norm { self.norm(&name, h) } else { h.to_vec() };
                    y.chunks(a.head_dim).map(|h| self.rotate(&normed(h), position)).collect()
                };
                q.push(heads(Target::QProj, "q_norm"));
                k.push(heads(Target::KProj, "k_norm"));
                let values = self.linear(layer, "self_attn", Target::VProj, &h);
                v.push(values.chunks(a.head_dim).map(<[f64]>::to_vec).collect::<Vec<_>>());
            }
            for (position, x) in xs.iter_mut().enumerate() {
                let mut mixed = Vec::new();
                for head in 0..a.heads {
                    let kv = head * a.kv_heads / a.heads;
                    let score = |s: usize| -> f64 {
                        let dot: f64 = q[position][head].iter().zip(&k[s][kv]).map(|(q, k)| q * k).sum();
                        (dot / (a.head_dim as f64).sqrt()).exp()
                    };
                    let weights: Vec<f64> = (0..=position).map(score).collect();
                    let sum: f64 = weights.iter().sum();
                    let column =
                        |d: usize| (0..=position).map(|s| weights[s] * v[s][kv][d]).sum::<f64>() / sum;
                    mixed.extend((0..a.head_dim).map(column));
                }
                let y = self.linear(layer, "self_attn", Target::OProj, &mixed);
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                let h = self.norm(&format!("model.layers.{layer}.post_attention_layernorm.weight"), x);
                let gate = self.linear(layer, "mlp", Target::GateProj, &h);
                let up = self.linear(layer, "mlp", Target::UpProj, &h);
                let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let y = self.linear(layer, "mlp", Target::DownProj, &h);
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
        }
        let head = self.get(if a.tied_head { "model.embed_tokens.weight" } else { "lm_head.weight" });
        let logprob = |(x, target): (&Vec<f64>, &Token)| {
            let h = self.norm("model.norm.weight", x);
            let logits: Vec<f64> =
                head.chunks(a.dim).map(|row| row.iter().zip(&h).map(|(w, h)| w * h).sum()).collect();
            logits[*target as usize] - logits.iter().map(|l| l.exp()).sum::<f64>().ln()
        };
        xs.iter().zip(targets).map(logprob).collect()
    }
}

#[test]
fn the_decoder_agrees_with_plain_loops_in_double_precision() {
    for (name, arch) in architectures() {
        let weights = weights(&arch, 5);
        let mut read = |name: &str| Ok::<_, Infallible>(weights[name].clone().into());
        let model = Model::<f64>::load(arch.clone(), &mut read).unwrap();
        let single = Model::<f32>::load(arch.clone(), &mut read).unwrap();
        let adapter = adapter::<f64>(&arch, 3, 9).weights();
        let mut random = random(6);
        let sequence = tokens(&mut random, 46, arch.vocab);
        let loss = Loss::CrossEntropy;
        let data = [datum(&sequence, 45, loss, |_| 1.0, |_| 0.0)];
        for adapter in [None, Some(&adapter)] {
            let reference = Reference { arch: &arch, weights: &weights, adapter };
            let expected = reference.logprobs(data[0].input(), data[0].targets());
            let found = forward(
                &model,
                adapter,
                &data,
                loss,
                PassOptions::default(),
                &mut TrainingWorkspace::default(),
            )
            .unwrap();
            for (t, (found, expected)) in found.logprobs[0].iter().zip(&expected).enumerate() {
                assert!((found - expected).abs() < 1e-11, "{name} at {t}: {found} instead of {expected}");
            }
            assert!((found.loss + expected.iter().sum::<f64>()).abs() < 1e-9);
            if adapter.is_none() {
                let found = forward(
                    &single,
                    None,
                    &data,
                    loss,
                    PassOptions::default(),
                    &mut TrainingWorkspace::default(),
                )
                .unwrap();
                for (found, expected) in found.logprobs[0].iter().zip(&expected) {
                    assert!((f64::from(*found) - expected).abs() < 2e-5, "{name} in single precision");
                }
            }
        }
    }
}

#[test]
fn wrong_weights_are_refused_by_name() {
    let (_, arch) = &architectures()[0];
    let mut weights = weights(arch, 5);
    weights.get_mut("model.layers.1.mlp.up_proj.weight").unwrap().pop();
    let mut read = |name: &str| Ok::<_, Infallible>(weights[name].clone().into());
    let error = Model::<f32>::load(arch.clone(), &mut read).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tensor `model.layers.1.mlp.up_proj.weight` has 559 elements, the architecture needs 560"
    );
    let arch = Architecture { kv_heads: 3, ..arch.clone() };
    assert!(Model::<f32>::random(arch, 0).is_err());
}
