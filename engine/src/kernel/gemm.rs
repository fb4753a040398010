//! Large matrix products through the `gemm` crates of the two number types: fast, but in an unspecified order of sums.
//!
//! The only file with `unsafe`: the crates take raw pointers. [`MatrixView`] and [`MatrixViewMut`] check when they are
//! made that every element they can address lies within their slice.
#![expect(unsafe_code, reason = "the gemm crates take raw pointers; views check their bounds beforehand")]

use crate::real::Real;
use gemm_common::Parallelism;

/// A matrix within a slice.
#[derive(Clone, Copy)]
pub(crate) struct MatrixView<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// Whether all elements of a matrix lie within `len`.
fn fits(len: usize, rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> bool {
    let last = |count: usize, stride: usize| count.checked_sub(1).and_then(|c| c.checked_mul(stride));
    match (last(rows, row_stride), last(columns, column_stride)) {
        (Some(r), Some(c)) => r.checked_add(c).is_some_and(|last| last < len) && len <= isize::MAX as usize,
        _ => rows == 0 || columns == 0,
    }
}

impl<'a, T: Real> MatrixView<'a, T> {
    /// The first `columns` of each row; rows begin `stride` apart.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, columns, stride, 1),
            "{rows} x {columns} by {stride} in {}",
            data.len()
        );
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The transposed matrix, as a view without a copy.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A row-major matrix within a slice, to be written.
pub(crate) struct MatrixViewMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, T: Real> MatrixViewMut<'a, T> {
    /// The first `columns` of each row; rows begin `stride` apart.
    pub(crate) fn new(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(
            fits(data.len(), rows, columns, stride, 1),
            "{rows} x {columns} by {stride} in {}",
            data.len()
        );
        assert!(columns <= stride || rows <= 1, "rows overlap");
        Self { data, rows, columns, stride }
    }
}

/// Threads that compute a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GemmThreads {
    /// Only the calling thread.
    One,
    /// All threads of the rayon pool.
    All,
}

/// `c = keep * c + factor * a · b`, where `keep` is 0 or 1.
pub(crate) fn gemm<T: Real>(
    c: MatrixViewMut<'_, T>,
    keep: bool,
    factor: T,
    a: MatrixView<'_, T>,
    b: MatrixView<'_, T>,
    threads: GemmThreads,
) {
    assert!(
        a.columns == b.rows && c.rows == a.rows && c.columns == b.columns,
        "[{}, {}] = [{}, {}] x [{}, {}]",
        c.rows,
        c.columns,
        a.rows,
        a.columns,
        b.rows,
        b.columns
    );
    if c.rows == 0 || c.columns == 0 {
        return;
    }
    let parallelism = match threads {
        GemmThreads::One => Parallelism::None,
        GemmThreads::All => Parallelism::Rayon(0),
    };
    // The kernels want `c` with contiguous columns; ours has contiguous rows, so the transposed product is computed.
    // Strides fit an isize because the last element's offset does.
    // SAFETY: each view names elements of its slice only (checked when it was made), the shapes agree (checked
    // above), and `c` is borrowed mutably, so it overlaps neither `a` nor `b`.
    unsafe {
        T::matrix_product()(
            c.columns,
            c.rows,
            a.columns,
            c.data.as_mut_ptr(),
            c.stride as isize,
            1,
            keep,
            b.data.as_ptr(),
            b.row_stride as isize,
            b.column_stride as isize,
            a.data.as_ptr(),
            a.row_stride as isize,
            a.column_stride as isize,
            T::ONE,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}
