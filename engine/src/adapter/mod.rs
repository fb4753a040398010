//! LoRA adapters: the trained values, their gradients, and the frozen snapshot that forward passes read.
//!
//! Many adapters share one frozen [`Model`](crate::model::Model). [`AdapterWeights`] never change after they are
//! made, so a sample that runs during training keeps the weights that it started with.

mod layout;

pub(crate) use layout::{AdapterLayout, FusedProjection, shape};

use crate::error::EngineError;
use crate::kernel::Panels;
use crate::real::Real;
use minds_core::architecture::Architecture;
use minds_core::lora::{LoraSpec, Target};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::sync::Arc;

/// The two matrices of one target in one layer, laid out as PEFT stores them.
#[derive(Clone, Copy, Debug)]
pub struct LoraTensors<'a, T> {
    /// Layer, counted from 0.
    pub layer: usize,
    /// Linear layer that the matrices adapt.
    pub target: Target,
    /// Inputs of the linear layer.
    pub input: usize,
    /// Outputs of the linear layer.
    pub output: usize,
    /// Values of `lora_A.weight`, shape `[rank, input]`.
    pub a: &'a [T],
    /// Values of `lora_B.weight`, shape `[output, rank]`.
    pub b: &'a [T],
}

fn views<'a, T>(layout: &'a AdapterLayout, values: &'a [T]) -> impl Iterator<Item = LoraTensors<'a, T>> {
    let rank = layout.spec.rank;
    values.chunks(layout.per_layer.max(1)).enumerate().flat_map(move |(layer, values)| {
        layout.slots.iter().map(move |s| LoraTensors {
            layer,
            target: s.target,
            input: s.input,
            output: s.output,
            a: &values[s.a..s.a + rank * s.input],
            b: &values[s.b..s.b + s.output * rank],
        })
    })
}

/// An adapter in training.
#[derive(Clone, Debug)]
pub struct Adapter<T> {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) values: Vec<T>,
}

impl<T: Real> Adapter<T> {
    /// A fresh adapter: `A` uniform in ±1/sqrt(inputs), one random stream per layer and target; `B` zero, so that
    /// the model starts unchanged.
    ///
    /// # Errors
    /// A spec that cannot be built.
    pub fn new(arch: &Architecture, spec: &LoraSpec) -> Result<Self, EngineError> {
        spec.check().map_err(|e| EngineError::Adapter(e.to_string()))?;
        let layout = AdapterLayout::new(arch, spec);
        let mut values = vec![T::ZERO; layout.per_layer * layout.layers];
        for (layer, values) in values.chunks_mut(layout.per_layer).enumerate() {
            for slot in &layout.slots {
                let mut random = ChaCha8Rng::seed_from_u64(spec.seed);
                random.set_stream((layer * Target::ALL.len() + slot.target as usize) as u64);
                let bound = 1.0 / (slot.input as f64).sqrt();
                for value in &mut values[slot.a..slot.a + spec.rank * slot.input] {
                    *value = T::from_f64(bound * (2.0 * unit(&mut random) - 1.0));
                }
            }
        }
        Ok(Self { layout: Arc::new(layout), values })
    }

    /// What the adapter is made of.
    #[must_use]
    pub fn spec(&self) -> &LoraSpec {
        &self.layout.spec
    }

    /// All matrices, layer by layer.
    pub fn tensors(&self) -> impl Iterator<Item = LoraTensors<'_, T>> {
        views(&self.layout, &self.values)
    }

    /// All values in the order of [`Self::tensors`]' memory; gradients and moments have the same order.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, writable, in the order of [`Self::values`].
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Replaces the matrices of one target in one layer.
    ///
    /// # Errors
    /// The adapter has no such target or layer, or a matrix has another size.
    pub fn set(&mut self, layer: usize, target: Target, a: &[T], b: &[T]) -> Result<(), EngineError> {
        let rank = self.layout.spec.rank;
        let slot = self.layout.slots.iter().find(|s| s.target == target);
        let Some(slot) = slot.filter(|_| layer < self.layout.layers) else {
            return Err(EngineError::Adapter(format!("it has no `{}` in layer {layer}", target.name())));
        };
        for (letter, given, expected) in [("A", a, rank * slot.input), ("B", b, slot.output * rank)] {
            if given.len() != expected {
                let name = format!("layer {layer} {} lora_{letter}", target.name());
                return Err(EngineError::TensorLength { name, len: given.len(), expected });
            }
        }
        let start = layer * self.layout.per_layer;
        self.values[start + slot.a..][..a.len()].copy_from_slice(a);
        self.values[start + slot.b..][..b.len()].copy_from_slice(b);
        Ok(())
    }

    /// An immutable copy in the form that forward passes read.
    #[must_use]
    pub fn weights(&self) -> AdapterWeights<T> {
        let layout = &self.layout;
        let rank = layout.spec.rank;
        let scale = T::from_f64(layout.spec.scale());
        let projections = self
            .values
            .par_chunks(layout.per_layer)
            .map(|values| {
                FusedProjection::ALL.map(|projection| {
                    let slots = layout.projection(projection);
                    let first = slots.first()?;
                    let a = &values[first.a..first.a + slots.len() * rank * first.input];
                    Some(PackedLora {
                        a: Panels::from_rows(a, slots.len() * rank, first.input),
                        b: slots
                            .iter()
                            .map(|s| {
                                let b = &values[s.b..s.b + s.output * rank];
                                Panels::from_rows_with(s.output, rank, |o, r| scale * b[o * rank + r])
                            })
                            .collect(),
                    })
                })
            })
            .collect();
        AdapterWeights { layout: layout.clone(), values: self.values.clone(), projections }
    }

    /// Zero gradients in the layout of this adapter.
    #[must_use]
    pub fn zero_grads(&self) -> Grads<T> {
        Grads { values: vec![T::ZERO; self.values.len()], layout: self.layout.clone() }
    }
}

/// Approximate size in bytes of an adapter in training: values, gradients, two moments, and a snapshot (values,
/// and packed).
#[must_use]
pub fn training_bytes(arch: &Architecture, spec: &LoraSpec) -> usize {
    6 * AdapterLayout::new(arch, spec).values() * size_of::<f32>()
}

/// Uniform in [0, 1) with 53 bits, the same on every machine.
pub(crate) fn unit(random: &mut impl Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// The adapter of one projection in packed form.
#[derive(Debug)]
pub(crate) struct PackedLora<T> {
    /// All `A` of the projection side by side.
    pub(crate) a: Panels<T>,
    /// `B` of each slot, with `alpha / rank` folded in.
    pub(crate) b: Vec<Panels<T>>,
}

/// An immutable snapshot of an adapter. Share it with an `Arc`.
#[derive(Debug)]
pub struct AdapterWeights<T> {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) values: Vec<T>,
    pub(crate) projections: Vec<[Option<PackedLora<T>>; 4]>,
}

impl<T: Real> AdapterWeights<T> {
    /// What the adapter is made of.
    #[must_use]
    pub fn spec(&self) -> &LoraSpec {
        &self.layout.spec
    }

    /// All matrices, layer by layer.
    pub fn tensors(&self) -> impl Iterator<Item = LoraTensors<'_, T>> {
        views(&self.layout, &self.values)
    }

    /// Approximate size in bytes: values, and packed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        2 * self.values.len() * size_of::<T>()
    }

    pub(crate) fn projection(&self, layer: usize, projection: FusedProjection) -> Option<&PackedLora<T>> {
        self.projections[layer][projection as usize].as_ref()
    }

    /// Refuses a model of another shape.
    pub(crate) fn check(&self, arch: &Architecture) -> Result<(), EngineError> {
        if *self.layout == AdapterLayout::new(arch, &self.layout.spec) {
            return Ok(());
        }
        Err(EngineError::Adapter("it was made for a model of another shape".into()))
    }
}

/// Accumulated gradients of an adapter's values, in the order of [`Adapter::values`].
#[derive(Clone, Debug)]
pub struct Grads<T> {
    pub(crate) layout: Arc<AdapterLayout>,
    pub(crate) values: Vec<T>,
}

impl<T: Real> Grads<T> {
    /// All gradients in the order of [`Adapter::values`].
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All gradients, writable, in the order of [`Adapter::values`].
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// The gradients of each matrix, layer by layer.
    pub fn tensors(&self) -> impl Iterator<Item = LoraTensors<'_, T>> {
        views(&self.layout, &self.values)
    }

    /// Sets all gradients to zero.
    pub fn clear(&mut self) {
        self.values.fill(T::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_adapter_is_repeatable_bounded_and_has_zero_b() {
        let arch = Architecture::tiny();
        let spec = LoraSpec::all_linear(4, 7);
        let (one, two) =
            (Adapter::<f32>::new(&arch, &spec).unwrap(), Adapter::<f32>::new(&arch, &spec).unwrap());
        assert_eq!(one.values, two.values);
        let mut firsts = Vec::new();
        for t in one.tensors() {
            let bound = 1.0 / (t.input as f32).sqrt();
            assert!(t.a.iter().all(|x| x.abs() <= bound && *x != 0.0));
            assert!(t.a.iter().any(|x| x.abs() > 0.9 * bound));
            assert!(t.b.iter().all(|x| *x == 0.0));
            firsts.push((t.a[0] / bound).to_bits());
        }
        assert_eq!(firsts.len(), 14);
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 14, "streams repeat");
    }

    #[test]
    fn set_writes_what_tensors_reads() {
        let arch = Architecture::tiny();
        let spec = LoraSpec { targets: vec![Target::UpProj, Target::QProj], ..LoraSpec::all_linear(2, 0) };
        let mut adapter = Adapter::<f32>::new(&arch, &spec).unwrap();
        let a = vec![1.5; 2 * 64];
        let b = vec![2.5; 2 * 176];
        adapter.set(1, Target::UpProj, &a, &b).unwrap();
        let found: Vec<_> = adapter.tensors().filter(|t| t.b.iter().any(|x| *x != 0.0)).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].layer, found[0].target), (1, Target::UpProj));
        assert_eq!((found[0].a, found[0].b), (&a[..], &b[..]));
        assert!(adapter.set(1, Target::VProj, &a, &b).is_err());
        assert!(adapter.set(2, Target::UpProj, &a, &b).is_err());
        assert!(adapter.set(0, Target::UpProj, &a[1..], &b).is_err());
    }
}
