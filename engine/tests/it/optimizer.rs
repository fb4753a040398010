//! AdamW against sums done by hand.

use minds_core::architecture::Architecture;
use minds_core::lora::{LoraSpec, Target};
use minds_core::optim::AdamParams;
use minds_engine::adapter::{Adapter, Grads};
use minds_engine::optim::{AdamState, adam_step};

/// An adapter of zeros whose first two values are `values`.
fn adapter(values: [f64; 2]) -> (Adapter<f64>, AdamState<f64>) {
    let spec = LoraSpec { targets: vec![Target::QProj], ..LoraSpec::all_linear(1, 0) };
    let mut adapter = Adapter::new(&Architecture::tiny(), &spec).unwrap();
    adapter.values_mut().fill(0.0);
    adapter.values_mut()[..2].copy_from_slice(&values);
    let state = AdamState::new(&adapter);
    (adapter, state)
}

fn grads(adapter: &Adapter<f64>, first: [f64; 2]) -> Grads<f64> {
    let mut grads = adapter.zero_grads();
    grads.values_mut()[..2].copy_from_slice(&first);
    grads
}

/// Each step halves `m` towards the gradient and keeps 3/4 of `v`, and the decay takes 0.1 * 0.2 = 2% off.
///
/// 1. g = 1:  m = 1/2,  v = 1/4;    m / (1 - 1/2) = 1,        sqrt(v / (1 - 3/4)) = 1
/// 2. g = 3:  m = 7/4,  v = 39/16;  m / (1 - 1/4) = 7/3,      v / (1 - 9/16)  = 39/7
/// 3. g = -2: m = -1/8, v = 181/64; m / (1 - 1/8) = -1/7,     v / (1 - 27/64) = 181/37
#[test]
fn three_steps_with_decay_are_those_of_the_formula() {
    let params = AdamParams {
        learning_rate: 0.1,
        beta1: 0.5,
        beta2: 0.75,
        eps: 0.0,
        weight_decay: 0.2,
        grad_clip_norm: 0.0,
    };
    let (mut adapter, mut state) = adapter([1.0, 0.0]);
    let mut expected = 1.0;
    for (g, mean, square) in [(1.0, 1.0, 1.0), (3.0, 7.0 / 3.0, 39.0 / 7.0), (-2.0, -1.0 / 7.0, 181.0 / 37.0)]
    {
        let grads = grads(&adapter, [g, 0.0]);
        let stats = adam_step(&mut adapter, &grads, &mut state, &params).unwrap();
        assert_eq!((stats.grad_norm, stats.clip), (f64::abs(g), 1.0));
        expected = 0.98 * expected - 0.1 * mean / f64::sqrt(square);
        assert!(
            (adapter.values()[0] - expected).abs() < 1e-15,
            "{} instead of {expected}",
            adapter.values()[0]
        );
    }
    assert_eq!((state.m[0], state.v[0], state.step), (-0.125, 181.0 / 64.0, 3));
    assert!(adapter.values()[1..].iter().all(|x| *x == 0.0), "values without gradient moved");
}

#[test]
fn eps_is_added_outside_the_root_and_clipping_scales_the_whole_gradient() {
    let params = AdamParams { learning_rate: 0.1, eps: 0.5, grad_clip_norm: 1.0, ..AdamParams::default() };
    let (mut adapter, mut state) = adapter([1.0, -0.5]);
    let grads = grads(&adapter, [3.0, 4.0]);
    let stats = adam_step(&mut adapter, &grads, &mut state, &params).unwrap();
    let clip = 1.0 / (5.0 + 1e-6);
    assert_eq!((stats.grad_norm, stats.clip), (5.0, clip));
    for (found, (before, g)) in adapter.values().iter().zip([(1.0, 3.0 * clip), (-0.5, 4.0 * clip)]) {
        assert!((found - (before - 0.1 * g / (g + 0.5))).abs() < 1e-14);
    }
    assert_eq!(grads.values()[..2], [3.0, 4.0]);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    for bad in [f64::NAN, f64::INFINITY, 1e200] {
        let (mut adapter, mut state) = adapter([1.0, -0.5]);
        let (before, moments) = (adapter.values().to_vec(), state.clone());
        let grads = grads(&adapter, [1.0, bad]);
        assert!(adam_step(&mut adapter, &grads, &mut state, &AdamParams::default()).is_err());
        assert_eq!((adapter.values(), &state), (&before[..], &moments));
    }
}

#[test]
fn a_step_after_which_no_forward_pass_can_be_computed_changes_nothing() {
    let (mut adapter, mut state) = adapter([1.0, -0.5]);
    let (before, moments) = (adapter.values().to_vec(), state.clone());
    let grads = grads(&adapter, [3.0, 4.0]);
    let step = |learning_rate| AdamParams { learning_rate, ..AdamParams::default() };
    assert!(adam_step(&mut adapter, &grads, &mut state, &step(1e30)).is_err());
    assert_eq!((adapter.values(), &state), (&before[..], &moments));
    adam_step(&mut adapter, &grads, &mut state, &step(0.1)).unwrap();
}
