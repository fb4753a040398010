//! Temperature, top-k, top-p and the draw.

use crate::real::Real;
use minds_core::ids::Token;
use minds_core::sampling::SamplingParams;

/// Candidates examined first when top-p is on; few distributions need more.
const FIRST_CUT: usize = 256;

/// Selects a token by a uniform number in [0, 1).
///
/// Temperature 0 takes the most likely token; ties go to the lowest id. Otherwise logits are divided by the
/// temperature; top-k keeps the `k` most likely; top-p keeps the fewest of those, most likely first,
/// whose probabilities sum to at least `top_p` of theirs, and at least one token; `draw` selects among what is left. The
/// row must have a finite maximum ([`NormalizedLogits::new`](super::NormalizedLogits::new) checks that).
#[must_use]
pub fn choose(logits: &[f32], params: &SamplingParams, draw: f64) -> Token {
    let top = best(logits, 1)[0];
    if params.temperature == 0.0 {
        return top;
    }
    let peak = logits[top as usize];
    let inverse = 1.0 / params.temperature;
    // An infinite inverse (a subnormal temperature) would make 0 * inf at the peak.
    let weight = |logit: f32| if logit == peak { 1.0 } else { Real::exp((logit - peak) * inverse) };
    let kept = params.top_k.unwrap_or(logits.len()).min(logits.len());
    if params.top_p >= 1.0 && kept == logits.len() {
        let weights: Vec<f32> = logits.iter().map(|l| weight(*l)).collect();
        return pick(&weights, draw) as Token;
    }
    let mut candidates = Vec::new();
    let total = if kept < logits.len() {
        candidates = best(logits, kept);
        candidates.iter().map(|t| f64::from(weight(logits[*t as usize]))).sum()
    } else {
        logits.iter().map(|l| f64::from(weight(*l))).sum::<f64>()
    };
    let mut cut = kept.min(FIRST_CUT);
    loop {
        if candidates.len() < cut {
            candidates = best(logits, cut);
        }
        let weights: Vec<f32> = candidates.iter().map(|t| weight(logits[*t as usize])).collect();
        let enough = shortest(&weights, f64::from(params.top_p) * total);
        if let Some(count) = enough.or((candidates.len() == kept).then_some(kept)) {
            return candidates[pick(&weights[..count], draw)];
        }
        cut = (cut * 8).min(kept);
    }
}

/// The `k` largest values of a row, best first; ties go to the lower id.
pub(super) fn best(row: &[f32], k: usize) -> Vec<Token> {
    if k == 1 {
        let top = (1..row.len()).fold(0, |top, i| if row[i] > row[top] { i } else { top });
        return vec![top as Token];
    }
    let order = |a: &Token, b: &Token| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<Token> = (0..row.len() as Token).collect();
    if k < ids.len() {
        if k > 0 {
            ids.select_nth_unstable_by(k - 1, order);
        }
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

/// Number of leading weights that reach `mass`; `None` if all together do not.
fn shortest(weights: &[f32], mass: f64) -> Option<usize> {
    let mut sum = 0.0;
    weights
        .iter()
        .position(|w| {
            sum += f64::from(*w);
            sum >= mass
        })
        .map(|i| i + 1)
}

/// The first index at which the running sum exceeds `draw` times the whole.
fn pick(weights: &[f32], draw: f64) -> usize {
    let target = draw * weights.iter().map(|w| f64::from(*w)).sum::<f64>();
    let mut sum = 0.0;
    let chosen = weights.iter().position(|w| {
        sum += f64::from(*w);
        sum > target
    });
    // Only rounding in the product can bring the target up to the sum: then it is the last that can be drawn.
    chosen.unwrap_or_else(|| weights.iter().rposition(|w| *w > 0.0).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::SampleRng;

    /// Logits whose probabilities are 1/2, 1/4, 1/8, 1/8, at the ids 2, 0, 1, 3.
    fn halves() -> Vec<f32> {
        [0.25f32, 0.125, 0.5, 0.125].map(f32::ln).to_vec()
    }

    fn params(temperature: f32, top_k: Option<usize>, top_p: f32) -> SamplingParams {
        SamplingParams { temperature, top_k, top_p, ..SamplingParams::plain(1) }
    }

    /// The token at each of 16 evenly spread draws.
    fn sweep(p: &SamplingParams) -> Vec<Token> {
        (0..16).map(|i| choose(&halves(), p, (f64::from(i) + 0.5) / 16.0)).collect()
    }

    fn runs(of: &[(Token, usize)]) -> Vec<Token> {
        of.iter().flat_map(|(token, times)| vec![*token; *times]).collect()
    }

    #[test]
    fn temperature_zero_takes_the_lowest_of_equals() {
        for (row, token) in [(vec![1.0, 3.0, 3.0], 1), (vec![5.0, 5.0], 0), (vec![-2.0, -1.0], 1)] {
            assert_eq!(choose(&row, &params(0.0, None, 1.0), 0.99), token);
        }
    }

    #[test]
    fn draws_split_the_unit_interval_by_probability() {
        assert_eq!(sweep(&params(1.0, None, 1.0)), runs(&[(0, 4), (1, 2), (2, 8), (3, 2)]));
    }

    #[test]
    fn temperature_one_half_squares_the_probabilities() {
        // 1/16, 1/64, 1/4, 1/64 in 22/64: 4, 1, 16, 1 of 22.
        let p = params(0.5, None, 1.0);
        let at = |of22: f64| choose(&halves(), &p, of22 / 22.0);
        assert_eq!([at(3.9), at(4.1), at(4.9), at(5.1), at(20.9), at(21.1)], [0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn top_k_cuts_ties_by_id_and_renormalises() {
        assert_eq!(sweep(&params(1.0, Some(1), 1.0)), runs(&[(2, 16)]));
        let at = |of7: f64| choose(&halves(), &params(1.0, Some(3), 1.0), of7 / 7.0);
        assert_eq!([at(3.9), at(4.1), at(5.9), at(6.1), at(6.99)], [2, 0, 0, 1, 1]);
    }

    #[test]
    fn top_p_keeps_the_shortest_list_that_reaches_it() {
        for (top_p, expected) in [
            (1e-6, vec![(2, 16)]),
            (0.49, vec![(2, 16)]),
            (0.51, vec![(2, 11), (0, 5)]),
            (0.74, vec![(2, 11), (0, 5)]),
        ] {
            assert_eq!(sweep(&params(1.0, None, top_p)), runs(&expected), "{top_p}");
        }
        // Beyond 3/4 the lower id of the two equals comes in: 4, 2, 1 of 7.
        let at = |of7: f64| choose(&halves(), &params(1.0, None, 0.8), of7 / 7.0);
        assert_eq!([at(3.9), at(4.1), at(5.9), at(6.1)], [2, 0, 0, 1]);
    }

    #[test]
    fn top_p_counts_within_the_tempered_top_k() {
        // Top 2 at temperature 1/2: 16 and 4 of 20, so 0.79 is reached by the first alone and 0.81 is not.
        assert_eq!(sweep(&params(0.5, Some(2), 0.79)), runs(&[(2, 16)]));
        assert!(sweep(&params(0.5, Some(2), 0.81)).contains(&0));
    }

    #[test]
    fn a_flat_row_wider_than_the_first_cut_keeps_its_share() {
        let p = params(1.0, None, 0.5);
        let chosen = |draw| choose(&vec![0.0; 4000], &p, draw);
        assert_eq!([chosen(0.0), chosen(0.5), chosen(0.9999)], [0, 1000, 1999]);
    }

    #[test]
    fn frequencies_of_ten_thousand_draws_are_within_five_deviations() {
        let mut draws = SampleRng::new(3, 0);
        let mut seen = [0.0f64; 4];
        for _ in 0..10_000 {
            seen[choose(&halves(), &params(1.0, None, 1.0), draws.next_unit()) as usize] += 1.0;
        }
        for (seen, p) in seen.iter().zip([0.25, 0.125, 0.5, 0.125]) {
            let deviation = (10_000.0 * p * (1.0 - p)).sqrt();
            assert!((seen - 10_000.0 * p).abs() < 5.0 * deviation, "{seen} of p {p}");
        }
    }

    #[test]
    fn extremes_stay_in_range() {
        let row = [0.0, f32::NEG_INFINITY, -1e30, 0.0];
        for temperature in [1e-45, 1e-3, 1.0, 1e30] {
            for draw in [0.0, 0.25, 0.75, 1.0 - f64::EPSILON / 2.0] {
                let token = choose(&row, &params(temperature, None, 1.0), draw);
                assert!(token != 1, "an impossible token at {temperature}");
            }
        }
    }
}
