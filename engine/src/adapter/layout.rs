//! The layout of an adapter's values in memory.

use minds_core::architecture::Architecture;
use minds_core::lora::{LoraSpec, Target};

/// A place in a block where one input feeds one or more linear layers, which are computed as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FusedProjection {
    /// The q, k and v projections.
    Qkv,
    /// The output projection of attention.
    O,
    /// The gate and up projections of the feed-forward.
    GateUp,
    /// The down projection of the feed-forward.
    Down,
}

impl FusedProjection {
    pub(crate) const ALL: [Self; 4] = [Self::Qkv, Self::O, Self::GateUp, Self::Down];

    /// The linear layers of the projection in the order of their output columns.
    pub(crate) fn targets(self) -> &'static [Target] {
        match self {
            Self::Qkv => &[Target::QProj, Target::KProj, Target::VProj],
            Self::O => &[Target::OProj],
            Self::GateUp => &[Target::GateProj, Target::UpProj],
            Self::Down => &[Target::DownProj],
        }
    }
}

/// Inputs and outputs of a target's linear layer.
pub(crate) fn shape(arch: &Architecture, target: Target) -> (usize, usize) {
    let q = arch.heads * arch.head_dim;
    let kv = arch.kv_heads * arch.head_dim;
    match target {
        Target::QProj => (arch.dim, q),
        Target::KProj | Target::VProj => (arch.dim, kv),
        Target::OProj => (q, arch.dim),
        Target::GateProj | Target::UpProj => (arch.dim, arch.ffn),
        Target::DownProj => (arch.ffn, arch.dim),
    }
}

/// Where the two matrices of one target lie within a layer's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdapterSlot {
    pub(crate) target: Target,
    pub(crate) projection: FusedProjection,
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// Offset of `A` [rank, input] and of `B` [output, rank] within the layer.
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// First column of the target in the projection's output and in the projection's stacked low-rank activations.
    pub(crate) column: usize,
    pub(crate) rank_column: usize,
}

/// Order of an adapter's values in one flat vector: layer by layer, within a layer projection by projection, within a
/// projection all `A` and then all `B`, so that the `A` of layers that share an input form one matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterLayout {
    pub(crate) spec: LoraSpec,
    pub(crate) layers: usize,
    pub(crate) per_layer: usize,
    pub(crate) slots: Vec<AdapterSlot>,
}

impl AdapterLayout {
    pub(crate) fn new(arch: &Architecture, spec: &LoraSpec) -> Self {
        let mut slots = Vec::new();
        let mut offset = 0;
        for projection in FusedProjection::ALL {
            let first = slots.len();
            let mut column = 0;
            let mut rank_column = 0;
            for &target in projection.targets() {
                let (input, output) = shape(arch, target);
                if spec.targets.contains(&target) {
                    slots.push(AdapterSlot {
                        target,
                        projection,
                        input,
                        output,
                        a: offset,
                        b: 0,
                        column,
                        rank_column,
                    });
                    offset += spec.rank * input;
                    rank_column += spec.rank;
                }
                column += output;
            }
            for slot in &mut slots[first..] {
                slot.b = offset;
                offset += slot.output * spec.rank;
            }
        }
        Self { spec: spec.clone(), layers: arch.layers, per_layer: offset, slots }
    }

    /// Number of values of the whole adapter.
    pub(crate) fn values(&self) -> usize {
        self.layers * self.per_layer
    }

    /// The slots of one projection.
    pub(crate) fn projection(&self, projection: FusedProjection) -> &[AdapterSlot] {
        let first = self.slots.iter().position(|s| s.projection == projection).unwrap_or(0);
        let count = self.slots.iter().filter(|s| s.projection == projection).count();
        &self.slots[first..first + count]
    }

    /// Width of a projection's stacked low-rank activations.
    pub(crate) fn width(&self, projection: FusedProjection) -> usize {
        self.projection(projection).len() * self.spec.rank
    }
}
