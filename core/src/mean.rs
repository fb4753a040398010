//! Means of measured values, with their standard errors.

/// A mean, with its standard error if it has more than one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanEstimate {
    /// The mean; NaN without values.
    pub mean: f64,
    /// Standard error; `None` for fewer than two values.
    pub error: Option<f64>,
}

impl MeanEstimate {
    /// Estimates from these values, taken as independent.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let error = (values.len() > 1).then(|| {
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
            (variance / count).sqrt()
        });
        Self { mean, error }
    }

    /// How much more this is than another, independent mean.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let error = self.error.zip(other.error).map(|(a, b)| a.hypot(b));
        Self { mean: self.mean - other.mean, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1, 2, 3, 4: mean 2.5, sample variance 5/3, standard error sqrt(5/12).
    #[test]
    fn a_mean_has_its_standard_error_where_there_is_one() {
        let found = MeanEstimate::of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(found.mean, 2.5);
        assert!((found.error.unwrap() - (5.0f64 / 12.0).sqrt()).abs() < 1e-12);
        let one = MeanEstimate::of(&[1.0]);
        assert_eq!(one, MeanEstimate { mean: 1.0, error: None });
        assert!(MeanEstimate::of(&[]).mean.is_nan());
        let difference = found.minus(&found);
        assert_eq!(difference.mean, 0.0);
        assert!((difference.error.unwrap() - (10.0f64 / 12.0).sqrt()).abs() < 1e-12);
        assert_eq!(found.minus(&one).error, None);
    }
}
