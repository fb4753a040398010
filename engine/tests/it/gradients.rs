//! Gradients against central differences in double precision.

use crate::fixture::{adapter, architectures, datum, random, tokens, uniform};
use minds_core::architecture::Architecture;
use minds_core::datum::{Datum, LossInputs};
use minds_core::loss::Loss;
use minds_engine::adapter::{Adapter, Grads};
use minds_engine::model::Model;
use minds_engine::train::{LogprobRows, PassOptions, TrainingWorkspace, forward, forward_backward};
use rand::Rng;

const LOSSES: [Loss; 4] = [
    Loss::CrossEntropy,
    Loss::ImportanceSampling,
    Loss::Ppo { low: 0.8, high: 1.2 },
    Loss::Cispo { low: 0.7, high: 1.3 },
];
const SHARED: PassOptions = PassOptions { rows: LogprobRows::All, share_prefixes: true };
const APART: PassOptions = PassOptions { rows: LogprobRows::All, share_prefixes: false };
const TRAINED: PassOptions = PassOptions { rows: LogprobRows::Trained, share_prefixes: true };

/// Two groups of three, one with a prompt of 29 tokens (so that suffixes cross the grid of 32), one datum of its
/// own, and one without any weight. Sampling logprobs lie on all sides of the clip bounds.
fn data(model: &Model<f64>, adapter: &Adapter<f64>, loss: Loss) -> Vec<Datum> {
    let mut random = random(11);
    let vocab = model.architecture().vocab;
    let (long, short) = (tokens(&mut random, 29, vocab), tokens(&mut random, 12, vocab));
    let mut sequences = Vec::new();
    for length in [4, 9, 6] {
        for prompt in [&long, &short] {
            sequences.push((([&prompt[..], &tokens(&mut random, length, vocab)]).concat(), length));
        }
    }
    sequences.push((tokens(&mut random, 15, vocab), 14));
    sequences.push((([&long[..], &tokens(&mut random, 5, vocab)]).concat(), 0));
    let plain: Vec<_> =
        sequences.iter().map(|(s, _)| datum(s, 0, Loss::CrossEntropy, |_| 0.0, |_| 0.0)).collect();
    let now = forward(
        model,
        Some(&adapter.weights()),
        &plain,
        Loss::CrossEntropy,
        SHARED,
        &mut TrainingWorkspace::default(),
    )
    .unwrap()
    .logprobs;
    let offsets = [0.4, -0.4, 0.1, -0.1, 0.15, -0.3, 0.7];
    sequences
        .iter()
        .zip(now)
        .map(|((sequence, trained), now)| {
            let mut carrier =
                || (0.3 + uniform(&mut random).abs() as f32) * [1.0, -1.0][random.next_u32() as usize % 2];
            datum(sequence, *trained, loss, |_| carrier(), |t| now[t] as f32 + offsets[t % offsets.len()])
        })
        .collect()
}

fn gradients(
    model: &Model<f64>,
    adapter: &Adapter<f64>,
    data: &[Datum],
    loss: Loss,
    options: PassOptions,
) -> (f64, Grads<f64>) {
    let mut grads = adapter.zero_grads();
    let out = forward_backward(
        model,
        &adapter.weights(),
        data,
        loss,
        options,
        &mut grads,
        &mut TrainingWorkspace::default(),
    )
    .unwrap();
    (out.loss, grads)
}

/// CISPO's weight is constant under differentiation: as a function to difference, freeze it.
fn cispo_frozen(data: &[Datum], now: &[Vec<f64>], low: f64, high: f64) -> Vec<Datum> {
    data.iter()
        .zip(now)
        .map(|(d, now)| {
            let LossInputs::Policy { logprobs, advantages } = d.inputs() else { unreachable!() };
            let tensors = logprobs.iter().zip(advantages).zip(now);
            let weight = |((q, a), lp): ((&f32, &f32), &f64)| {
                ((lp - f64::from(*q)).exp().clamp(low, high) * f64::from(*a)) as f32
            };
            let weights = LossInputs::Weights(tensors.map(weight).collect());
            Datum::new(d.input().to_vec(), d.targets().to_vec(), weights).unwrap()
        })
        .collect()
}

fn check(name: &str, arch: &Architecture, loss: Loss) {
    let model = Model::<f64>::random(arch.clone(), 3).unwrap();
    let adapter = adapter::<f64>(arch, 3, 4);
    let data = data(&model, &adapter, loss);
    let (value, grads) = gradients(&model, &adapter, &data, loss, SHARED);
    let (apart_value, apart) = gradients(&model, &adapter, &data, loss, APART);
    let (_, trained) = gradients(&model, &adapter, &data, loss, TRAINED);
    assert!((value - apart_value).abs() < 1e-10 * value.abs().max(1.0));
    for (g, others) in grads.values().iter().zip(apart.values().iter().zip(trained.values())) {
        for other in [others.0, others.1] {
            assert!((g - other).abs() < 1e-10 * g.abs().max(1.0), "{name} {loss:?}: {g} and {other}");
        }
    }

    let (mut tolerance, mut differenced, mut difference_loss) = (1e-6, data.clone(), loss);
    if let Loss::Cispo { low, high } = loss {
        let now =
            forward(&model, Some(&adapter.weights()), &data, loss, SHARED, &mut TrainingWorkspace::default())
                .unwrap()
                .logprobs;
        // The frozen weights are rounded to f32.
        (tolerance, differenced, difference_loss) =
            (1e-5, cispo_frozen(&data, &now, low, high), Loss::CrossEntropy);
    }
    let loss_with = |adapter: &Adapter<f64>| {
        forward(
            &model,
            Some(&adapter.weights()),
            &differenced,
            difference_loss,
            SHARED,
            &mut TrainingWorkspace::default(),
        )
        .unwrap()
        .loss
    };
    let mut random = random(12);
    let pieces: Vec<(usize, usize)> = {
        let start = adapter.values().as_ptr() as usize;
        let offset = |s: &[f64]| (s.as_ptr() as usize - start) / size_of::<f64>();
        adapter.tensors().flat_map(|t| [(offset(t.a), t.a.len()), (offset(t.b), t.b.len())]).collect()
    };
    assert_eq!(pieces.len(), arch.layers * 7 * 2);
    for (offset, len) in pieces {
        for _ in 0..2 {
            let at = offset + random.next_u32() as usize % len;
            let step = 1e-5;
            let [up, down] = [step, -step].map(|step| {
                let mut moved = adapter.clone();
                moved.values_mut()[at] += step;
                loss_with(&moved)
            });
            let (numeric, exact) = ((up - down) / (2.0 * step), grads.values()[at]);
            assert!(
                (numeric - exact).abs() < tolerance * exact.abs() + 2e-8,
                "{name} {loss:?} value {at}: {exact} instead of {numeric}"
            );
        }
    }
}

#[test]
fn every_loss_has_the_gradient_of_its_value_on_llama() {
    let (name, arch) = &architectures()[0];
    LOSSES.iter().for_each(|&loss| check(name, arch, loss));
}

#[test]
fn every_loss_has_the_gradient_of_its_value_on_qwen2() {
    let (name, arch) = &architectures()[1];
    LOSSES.iter().for_each(|&loss| check(name, arch, loss));
}

#[test]
fn every_loss_has_the_gradient_of_its_value_on_qwen3() {
    let (name, arch) = &architectures()[2];
    LOSSES.iter().for_each(|&loss| check(name, arch, loss));
}

/// Golden gradients of torch are in `golden.rs`; here the order of rows and shared prefixes change.
#[test]
fn gspo_has_one_gradient_however_its_data_are_arranged() {
    let (_, arch) = &architectures()[0];
    let model = Model::<f64>::random(arch.clone(), 3).unwrap();
    let adapter = adapter::<f64>(arch, 3, 4);
    let loss = Loss::Gspo { low: 0.9, high: 1.1 };
    let data = data(&model, &adapter, loss);
    let (value, grads) = gradients(&model, &adapter, &data, loss, SHARED);
    assert!(grads.values().iter().any(|g| *g != 0.0));
    for options in [APART, TRAINED] {
        let (other, others) = gradients(&model, &adapter, &data, loss, options);
        assert!((value - other).abs() < 1e-10 * value.abs().max(1.0), "{value} {other}");
        for (a, b) in grads.values().iter().zip(others.values()) {
            assert!((a - b).abs() < 1e-10 * a.abs().max(1.0), "{a} and {b}");
        }
    }
}

#[test]
fn a_loss_that_overflows_leaves_the_gradients_alone() {
    let (_, arch) = &architectures()[0];
    let model = Model::<f32>::random(arch.clone(), 3).unwrap();
    let adapter = adapter::<f32>(arch, 3, 4);
    let sequence = tokens(&mut random(1), 12, arch.vocab);
    let good = [datum(&sequence, 5, Loss::ImportanceSampling, |_| 1.0, |_| -1.0)];
    let bad = [good[0].clone(), datum(&sequence, 5, Loss::ImportanceSampling, |_| 1.0, |_| -500.0)];
    let mut grads = adapter.zero_grads();
    let pass = |data: &[Datum], grads: &mut Grads<f32>| {
        forward_backward(
            &model,
            &adapter.weights(),
            data,
            Loss::ImportanceSampling,
            SHARED,
            grads,
            &mut TrainingWorkspace::default(),
        )
    };
    pass(&good, &mut grads).unwrap();
    let before = grads.values().to_vec();
    assert!(before.iter().any(|g| *g != 0.0));
    assert_eq!(pass(&bad, &mut grads).unwrap_err().to_string(), "the loss is not finite");
    assert_eq!(grads.values(), before);
    pass(&good, &mut grads).unwrap();
    assert!(grads.values().iter().zip(&before).all(|(sum, one)| (sum - 2.0 * one).abs() <= 1e-5 * one.abs()));
}
