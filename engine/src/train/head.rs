//! The head: logits, logprobs, losses and their derivative, for the rows that need them.

use super::PassOutput;
use super::pass::{TrainingPass, normed};
use crate::error::EngineError;
use crate::kernel::gemm::{GemmThreads, MatrixView, MatrixViewMut, gemm};
use crate::kernel::rows::{log_sum_exp, rms_norm_backward};
use crate::kernel::vectorized;
use crate::loss::token_loss;
use crate::model::Model;
use crate::real::Real;
use minds_core::loss::Loss;
use rayon::prelude::*;

/// A target to look up in a row of logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetLookup<T> {
    pub(crate) row: usize,
    pub(crate) datum: usize,
    pub(crate) position: usize,
    pub(crate) target: usize,
    /// Logprob at sampling time.
    pub(crate) old: T,
    pub(crate) coefficient: T,
    /// Whether the model sampled the target.
    pub(crate) sampled: bool,
    /// Log ratio of the whole sequence, where the loss has one ratio per sequence.
    pub(crate) sequence_log_ratio: Option<T>,
}

impl<T: Real> TargetLookup<T> {
    fn counts(&self, loss: Loss) -> bool {
        loss.counts(self.coefficient.to_f64(), self.sampled)
    }
}

/// Rows of logits in memory at a time: 128 rows of 49152 are 25 MB.
const ROWS: usize = 128;

/// Writes logprobs and adds losses to `out`; returns the derivative with respect to the first `trained` rows of
/// `last`. `picks` are in order of their rows; several may share one.
pub(crate) fn head<T: Real>(
    pass: &TrainingPass<'_, T>,
    picks: Vec<TargetLookup<T>>,
    last: &[T],
    trained: usize,
    logits: &mut Vec<T>,
    out: &mut PassOutput<T>,
) -> Result<Vec<T>, EngineError> {
    let arch = pass.model.architecture();
    let dim = arch.dim;
    let vocab = arch.vocab;
    let mut d_last = vec![T::ZERO; trained * dim];
    let rows: Vec<&[TargetLookup<T>]> = picks.chunk_by(|a, b| a.row == b.row).collect();
    let carries = |row: &&[TargetLookup<T>]| row[0].row < trained && row.iter().any(|p| p.counts(pass.loss));
    let (carrying, plain): (Vec<_>, Vec<_>) = rows.into_iter().partition(carries);
    let chunks = carrying.chunks(ROWS).map(|c| (c, true)).chain(plain.chunks(ROWS).map(|c| (c, false)));
    for (rows, with_gradients) in chunks {
        let chosen = rows.iter().flat_map(|r| &last[r[0].row * dim..(r[0].row + 1) * dim]).copied();
        let last: Vec<T> = chosen.collect();
        logits.resize(rows.len() * vocab, T::ZERO);
        pass.model.head(&normed(pass.model, &last), logits);
        let results: Vec<Vec<(T, T)>> = logits
            .par_chunks_mut(vocab)
            .zip(rows)
            .map(|(logits, picks)| row(pass, logits, picks, with_gradients))
            .collect();
        for (pick, (logprob, loss)) in rows.iter().copied().flatten().zip(results.iter().flatten()) {
            if !logprob.is_finite() {
                return Err(EngineError::NotFinite { what: "logprob" });
            }
            out.logprobs[pick.datum][pick.position] = *logprob;
            out.loss += loss.to_f64();
        }
        if with_gradients {
            let mut d_hidden = vec![T::ZERO; rows.len() * dim];
            let count = rows.len();
            let weights = MatrixView::new(pass.model.head_rows(), vocab, dim, dim);
            let d_logits = MatrixView::new(logits, count, vocab, vocab);
            gemm(
                MatrixViewMut::new(&mut d_hidden, count, dim, dim),
                false,
                T::ONE,
                d_logits,
                weights,
                GemmThreads::All,
            );
            let mut d_chosen = vec![T::ZERO; count * dim];
            rms_norm_backward(&last, &pass.model.norm, pass.model.eps(), &d_hidden, &mut d_chosen);
            for (picks, d) in rows.iter().zip(d_chosen.chunks(dim)) {
                d_last[picks[0].row * dim..][..dim].copy_from_slice(d);
            }
        }
    }
    if !out.loss.is_finite() {
        return Err(EngineError::NotFinite { what: "loss" });
    }
    Ok(d_last)
}

/// Writes the logprob of each pick to `logprobs`, without losses.
///
/// # Errors
/// A logprob that is not finite.
pub(crate) fn read_logprobs<T: Real>(
    model: &Model<T>,
    picks: &[TargetLookup<T>],
    last: &[T],
    logits: &mut Vec<T>,
    logprobs: &mut [Vec<T>],
) -> Result<(), EngineError> {
    let dim = model.architecture().dim;
    let vocab = model.architecture().vocab;
    let rows: Vec<&[TargetLookup<T>]> = picks.chunk_by(|a, b| a.row == b.row).collect();
    for rows in rows.chunks(ROWS) {
        let chosen = rows.iter().flat_map(|r| &last[r[0].row * dim..(r[0].row + 1) * dim]).copied();
        let chosen: Vec<T> = chosen.collect();
        logits.resize(rows.len() * vocab, T::ZERO);
        model.head(&normed(model, &chosen), logits);
        let norms: Vec<T> = logits.par_chunks(vocab).map(log_sum_exp).collect();
        for ((logits, norm), picks) in logits.chunks(vocab).zip(norms).zip(rows) {
            for pick in *picks {
                let logprob = logits[pick.target] - norm;
                if !logprob.is_finite() {
                    return Err(EngineError::NotFinite { what: "logprob" });
                }
                logprobs[pick.datum][pick.position] = logprob;
            }
        }
    }
    Ok(())
}

/// Logprob and loss of each pick; turns the logits into their derivative if asked.
fn row<T: Real>(
    pass: &TrainingPass<'_, T>,
    logits: &mut [T],
    picks: &[TargetLookup<T>],
    with_gradients: bool,
) -> Vec<(T, T)> {
    let lse = log_sum_exp(logits);
    let results: Vec<(T, T, T)> = picks
        .iter()
        .map(|p| {
            let logprob = logits[p.target] - lse;
            let log_ratio = p.sequence_log_ratio.unwrap_or(logprob - p.old);
            let (loss, slope) = token_loss(pass.loss, logprob, log_ratio, p.coefficient, p.sampled);
            (logprob, loss, slope)
        })
        .collect();
    if with_gradients {
        let total: T = results.iter().map(|(_, _, slope)| *slope).sum();
        vectorized(
            #[inline(always)]
            || logits.iter_mut().for_each(|x| *x = -total * (*x - lse).exp()),
        );
        for (pick, (_, _, slope)) in picks.iter().zip(&results) {
            logits[pick.target] += *slope;
        }
    }
    results.into_iter().map(|(logprob, loss, _)| (logprob, loss)).collect()
}
