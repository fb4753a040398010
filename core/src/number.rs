//! Numbers in texts for people.

use std::fmt;

/// Magnitudes from here on are written with an exponent, except for 0.
const LARGE: f64 = 1e15;
/// Magnitudes below this are, too.
const SMALL: f64 = 1e-5;

/// A number that is written in scientific notation if it would otherwise have many digits: `1e300`. Digits after the point
/// are as many as the format asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortNumber(pub f64);

impl fmt::Display for ShortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        // With a given number of digits, a small number is rounded.
        let small = f.precision().is_none() && size > 0.0 && size < SMALL;
        if small || (size >= LARGE && size.is_finite()) {
            return fmt::LowerExp::fmt(&self.0, f);
        }
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_with_many_digits_has_an_exponent() {
        for (number, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (-2.5, "-2.5"),
            (1e-5, "0.00001"),
            (3.2e-6, "3.2e-6"),
            (5e-324, "5e-324"),
            (999_999_999_999_999.0, "999999999999999"),
            (1e15, "1e15"),
            (-1e300, "-1e300"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(ShortNumber(number).to_string(), expected);
        }
        assert_eq!(format!("{:.2} {:.2}", ShortNumber(1.0 / 3.0), ShortNumber(1e-9)), "0.33 0.00");
        assert_eq!(format!("{:.1}", ShortNumber(1e300)), "1.0e300");
    }
}
