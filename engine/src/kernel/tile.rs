//! The micro-kernel: up to 12 rows times one panel, accumulated in registers.
//!
//! Each element of the result is one accumulator that runs over the depth in order with fused multiply-add. Its bits
//! therefore do not depend on the height of the tile, on the width of the registers, or on the other rows.

use super::panels::WIDTH;
use crate::real::Real;
use pulp::{Arch, Simd, WithSimd};
use std::sync::OnceLock;

/// Most rows of a tile: 24 accumulators of the 32 AVX-512 registers.
pub(crate) const TALLEST: usize = 12;

/// The sums of a tile, aligned to cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct TileSums<T>(pub(crate) [[T; WIDTH]; TALLEST]);

impl<T: Real> TileSums<T> {
    /// Creates sums that are all zero.
    pub(crate) fn zeros() -> Self {
        Self([[T::ZERO; WIDTH]; TALLEST])
    }
}

/// The best instruction set of this machine, and the tallest tile whose accumulators fit its registers.
fn machine() -> (Arch, usize) {
    struct Tallest;
    impl WithSimd for Tallest {
        type Output = usize;
        fn with_simd<S: Simd>(self, _: S) -> usize {
            if S::REGISTER_COUNT >= 32 { TALLEST } else { TALLEST / 2 }
        }
    }
    static MACHINE: OnceLock<(Arch, usize)> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let arch = Arch::new();
        (arch, arch.dispatch(Tallest))
    })
}

/// Tallest tile worth using here.
pub(crate) fn tallest() -> usize {
    machine().1
}

/// Runs a plain loop compiled for the best instruction set of this machine.
#[inline(always)]
pub(crate) fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    machine().0.dispatch(work)
}

/// Runs an operation on registers with the best instruction set of this machine.
#[inline]
pub(crate) fn dispatch<W: WithSimd>(work: W) -> W::Output {
    machine().0.dispatch(work)
}

/// Initial value of the sums of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitialSum {
    /// The sums start at zero.
    Zero,
    /// The sums start at the values of the output.
    Output,
}

/// `c = a · b` or `c += a · b` for a tile of `c.len()` rows: `a` is a strip `[depth][rows]`, `b` a panel
/// `[depth][WIDTH]`.
#[inline]
pub(crate) fn tile<T: Real>(a: &[T], b: &[T], c: &mut [[T; WIDTH]], start: InitialSum) {
    assert_eq!(a.len() * WIDTH, b.len() * c.len(), "the depths of the tile's operands differ");
    dispatch(Tile { a, b, c, start });
}

struct Tile<'a, T> {
    a: &'a [T],
    b: &'a [T],
    c: &'a mut [[T; WIDTH]],
    start: InitialSum,
}

impl<T: Real> WithSimd for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, c, start } = self;
        macro_rules! by_height {
            ($($height:literal)*) => {
                match c.len() {
                    0 => {}
                    $($height => accumulate::<S, T, $height>(simd, a, b, c, start),)*
                    more => unreachable!("a tile of {more} rows"),
                }
            };
        }
        by_height!(1 2 3 4 5 6 7 8 9 10 11 12);
    }
}

#[inline(always)]
fn accumulate<S: Simd, T: Real, const H: usize>(
    simd: S,
    a: &[T],
    b: &[T],
    c: &mut [[T; WIDTH]],
    start: InitialSum,
) {
    let vectors = WIDTH / T::lane_count::<S>();
    let steps = a.as_chunks::<H>().0;
    let b = T::registers::<S>(b);
    let Ok(c): Result<&mut [[T; WIDTH]; H], _> = c.try_into() else { return };
    // Two registers of columns at a time: the whole panel under AVX-512, half of it under AVX2.
    for first in (0..vectors).step_by(2) {
        let mut sums = [[T::splat(simd, T::ZERO); 2]; H];
        if start == InitialSum::Output {
            for h in 0..H {
                let row = T::registers::<S>(&c[h]);
                sums[h] = [row[first], row[first + 1]];
            }
        }
        for (a, b) in steps.iter().zip(b.chunks_exact(vectors)) {
            let left = b[first];
            let right = b[first + 1];
            for h in 0..H {
                let x = T::splat(simd, a[h]);
                sums[h][0] = T::fused(simd, x, left, sums[h][0]);
                sums[h][1] = T::fused(simd, x, right, sums[h][1]);
            }
        }
        for h in 0..H {
            let row = T::registers_mut::<S>(&mut c[h]);
            [row[first], row[first + 1]] = sums[h];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::unit;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn check<T: Real>(bits: impl Fn(T) -> u64) {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut values =
            |len: usize| -> Vec<T> { (0..len).map(|_| T::from_f64(unit(&mut random) - 0.5)).collect() };
        let depth = 37;
        for height in 1..=TALLEST {
            let a = values(depth * height);
            let b = values(depth * WIDTH);
            let before = values(height * WIDTH);
            let run = |dispatch: &dyn Fn(Tile<'_, T>)| -> Vec<u64> {
                let mut c = before.clone();
                let rows = c.as_chunks_mut::<WIDTH>().0;
                dispatch(Tile { a: &a, b: &b, c: rows, start: InitialSum::Output });
                c.into_iter().map(&bits).collect()
            };
            let best = run(&|tile| Arch::new().dispatch(tile));
            assert_eq!(
                best,
                run(&|tile| Simd::vectorize(pulp::Scalar::new(), tile)),
                "scalar, {height} rows"
            );
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = pulp::x86::V3::try_new() {
                assert_eq!(best, run(&|tile| Simd::vectorize(avx2, tile)), "AVX2, {height} rows");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        check::<f32>(|x| u64::from(x.to_bits()));
        check::<f64>(f64::to_bits);
    }
}
