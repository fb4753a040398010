//! Where the values of an adapter lie.

use minds_core::architecture::Architecture;
use minds_core::lora::{LoraSpec, Target};

/// A place in a block where one input feeds one or more linear layers, which are computed as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// q, k and v.
    Qkv,
    /// The output projection.
    O,
    /// gate and up.
    GateUp,
    /// down.
    Down,
}

impl Site {
    pub(crate) const ALL: [Self; 4] = [Self::Qkv, Self::O, Self::GateUp, Self::Down];

    /// The linear layers of the site in the order of their output columns.
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
    let (q, kv) = (arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim);
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
pub(crate) struct Slot {
    pub(crate) target: Target,
    pub(crate) site: Site,
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// Offset of `A` [rank, input] and of `B` [output, rank] within the layer.
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// First column of the target in the site's output and in the site's stacked low-rank activations.
    pub(crate) column: usize,
    pub(crate) lane: usize,
}

/// How an adapter's values lie in one flat vector: layer by layer, within a layer site by site, within a site all
/// `A` and then all `B`, so that the `A` of layers that share an input form one matrix.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) spec: LoraSpec,
    pub(crate) layers: usize,
    pub(crate) per_layer: usize,
    pub(crate) slots: Vec<Slot>,
}

impl Layout {
    pub(crate) fn new(arch: &Architecture, spec: &LoraSpec) -> Self {
        let mut slots = Vec::new();
        let mut offset = 0;
        for site in Site::ALL {
            let first = slots.len();
            let (mut column, mut lane) = (0, 0);
            for &target in site.targets() {
                let (input, output) = shape(arch, target);
                if spec.targets.contains(&target) {
                    slots.push(Slot { target, site, input, output, a: offset, b: 0, column, lane });
                    offset += spec.rank * input;
                    lane += spec.rank;
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

    /// How many values there are.
    pub(crate) fn values(&self) -> usize {
        self.layers * self.per_layer
    }

    /// The slots of one site.
    pub(crate) fn site(&self, site: Site) -> &[Slot] {
        let first = self.slots.iter().position(|s| s.site == site).unwrap_or(0);
        let count = self.slots.iter().filter(|s| s.site == site).count();
        &self.slots[first..first + count]
    }

    /// Width of a site's stacked low-rank activations.
    pub(crate) fn width(&self, site: Site) -> usize {
        self.site(site).len() * self.spec.rank
    }
}
