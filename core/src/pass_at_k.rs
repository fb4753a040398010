//! The chance that at least one of `k` samples succeeds.

/// Unbiased estimate of pass@k from `samples` of which `successes` succeeded: the share of all choices of `k` samples
/// that hold a success, `1 - C(n - c, k) / C(n, k)` (Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
/// eq. 1). `None` for fewer samples than `k`.
///
/// ```
/// use minds_core::pass_at_k::pass_at_k;
///
/// // Of the six pairs of four samples, one holds neither of the two successes.
/// assert!((pass_at_k(4, 2, 2).unwrap() - (1.0 - 1.0 / 6.0)).abs() < 1e-12);
/// assert_eq!(pass_at_k(4, 1, 1), Some(0.25));
/// assert_eq!(pass_at_k(1, 1, 2), None);
/// ```
#[must_use]
pub fn pass_at_k(samples: u64, successes: u64, k: u64) -> Option<f64> {
    if k == 0 || k > samples || successes > samples {
        return None;
    }
    let failures = samples - successes;
    if failures < k {
        return Some(1.0);
    }
    // The binomials as a product, which does not overflow.
    let none: f64 = (failures + 1..=samples).map(|i| 1.0 - k as f64 / i as f64).product();
    Some(1.0 - none)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the choices one by one.
    fn counted(samples: u32, successes: u32, k: u32) -> f64 {
        let choices = (0_u32..1 << samples).filter(|choice| choice.count_ones() == k);
        let of_successes = (1 << successes) - 1;
        let (all, with) = choices
            .fold((0, 0), |(all, with), choice| (all + 1, with + u32::from(choice & of_successes != 0)));
        f64::from(with) / f64::from(all)
    }

    #[test]
    fn it_is_the_share_of_the_choices_with_a_success() {
        for samples in 1..=8 {
            for successes in 0..=samples {
                for k in 1..=samples {
                    let found = pass_at_k(samples.into(), successes.into(), k.into()).unwrap();
                    assert!(
                        (found - counted(samples, successes, k)).abs() < 1e-12,
                        "{samples} {successes} {k}"
                    );
                }
            }
        }
        assert_eq!(pass_at_k(3, 1, 0), None);
        assert_eq!(pass_at_k(1_000_000, 0, 1000), Some(0.0));
    }
}
