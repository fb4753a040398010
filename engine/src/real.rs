//! The number type of the engine: `f32` for work, `f64` for checking gradients.
//!
//! No code in the engine depends on which of the two it uses; the differences are collected here.

use gemm_common::Parallelism;
use pulp::Simd;
use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

/// A product `c = alpha * c + beta * a · b` of column-major matrices: rows, columns, inner length; then `c` with the
/// strides of its columns and rows and whether it is read; `a` and `b` with theirs; `alpha`, `beta`; three flags for
/// complex numbers.
pub type MatrixProduct<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// A floating-point type together with the few vector operations that the micro-kernel needs.
pub trait Real:
    Copy
    + Debug
    + Default
    + Display
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + Sum
{
    /// The value zero, the additive identity.
    const ZERO: Self;
    /// The value one, the multiplicative identity.
    const ONE: Self;
    /// Below every finite number.
    const NEG_INFINITY: Self;

    /// A vector register of the instruction set `S`.
    type Lanes<S: Simd>: Copy;

    /// Rounds from double precision.
    fn from_f64(x: f64) -> Self;
    /// Widens to double precision.
    fn to_f64(self) -> f64;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Square root of the value.
    fn sqrt(self) -> Self;
    /// `e^self`, the same bits on every path and machine for `f32`; 0 for very negative numbers.
    fn exp(self) -> Self;
    /// Natural logarithm of the value.
    fn ln(self) -> Self;

    /// The matrix product for this processor.
    fn matrix_product() -> MatrixProduct<Self>;

    /// Elements of a register.
    #[must_use]
    fn lane_count<S: Simd>() -> usize;
    /// One value in all lanes.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Lanes<S>;
    /// `a * b + c` with one rounding, lane by lane.
    fn fused<S: Simd>(simd: S, a: Self::Lanes<S>, b: Self::Lanes<S>, c: Self::Lanes<S>) -> Self::Lanes<S>;
    /// The slice as registers; its length must be a multiple of the lanes.
    fn registers<S: Simd>(slice: &[Self]) -> &[Self::Lanes<S>];
    /// The slice as writable registers; its length must be a multiple of the lanes.
    fn registers_mut<S: Simd>(slice: &mut [Self]) -> &mut [Self::Lanes<S>];
}

macro_rules! real {
    ($t:ident, $lanes:ident, $count:ident, $splat:ident, $fused:ident, $as:ident, $as_mut:ident, $exp:expr, $gemm:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = $t::NEG_INFINITY;

            type Lanes<S: Simd> = S::$lanes;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $t::ln(self)
            }
            fn matrix_product() -> MatrixProduct<Self> {
                $gemm()
            }
            #[inline(always)]
            fn lane_count<S: Simd>() -> usize {
                S::$count
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> S::$lanes {
                simd.$splat(x)
            }
            #[inline(always)]
            fn fused<S: Simd>(simd: S, a: S::$lanes, b: S::$lanes, c: S::$lanes) -> S::$lanes {
                simd.$fused(a, b, c)
            }
            #[inline(always)]
            fn registers<S: Simd>(slice: &[Self]) -> &[S::$lanes] {
                S::$as(slice).0
            }
            #[inline(always)]
            fn registers_mut<S: Simd>(slice: &mut [Self]) -> &mut [S::$lanes] {
                S::$as_mut(slice).0
            }
        }
    };
}

real!(
    f32,
    f32s,
    F32_LANES,
    splat_f32s,
    mul_add_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    exp_f32,
    gemm_f32::gemm::f32::get_gemm_fn
);
real!(
    f64,
    f64s,
    F64_LANES,
    splat_f64s,
    mul_add_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    f64::exp,
    gemm_f64::gemm::f64::get_gemm_fn
);

/// `e^x` by the reduction of Cody & Waite (1980) to |r| <= ln 2 / 2 and a polynomial of degree 7 (coefficients of
/// Moshier's Cephes); within 2 ulp.
///
/// Plain multiplications and additions in one fixed order, no branch and no table: compilers turn a loop over it
/// into vector code that gives the same bits.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = (p * r) * r + r + 1.0;
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    // Below, the result would be subnormal; above, it overflows. NaN passes through `p`.
    let low = if x < -87.3 { 0.0 } else { scaled };
    if x > 88.7 { f32::INFINITY } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_double_precision() {
        let mut worst = 0.0f64;
        for i in 0..2_000_000 {
            let x = -87.0 + 175.0 * (i as f32) / 2_000_000.0;
            let exact = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
            worst = worst.max((f64::from(Real::exp(x)) - exact).abs() / ulp);
        }
        assert!(worst < 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_keeps_the_edges() {
        let exp = |x: f32| Real::exp(x);
        assert_eq!(exp(0.0).to_bits(), 1.0f32.to_bits());
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0.0f32.to_bits());
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
