//! Statistics of a run's metrics, and readable formats for numbers.

use minds_core::mean::MeanEstimate;

/// Formats a mean as `0.512 ± 0.013`, with the digits that its error makes significant.
pub fn show_mean(estimate: MeanEstimate) -> String {
    let MeanEstimate { mean, error } = estimate;
    match error.filter(|error| *error > 0.0 && mean.abs() < 1e6) {
        Some(error) => {
            let decimals = (1.0 - error.log10().floor()).clamp(0.0, 9.0) as usize;
            format!("{mean:.decimals$} ± {error:.decimals$}").replace('-', "−")
        }
        None => show(mean),
    }
}

/// Moving average over `window` points, fewer at both ends.
pub fn smooth(points: &[(f64, f64)], window: usize) -> Vec<(f64, f64)> {
    let mut sums = Vec::with_capacity(points.len() + 1);
    sums.push(0.0);
    for (_, value) in points {
        sums.push(sums[sums.len() - 1] + value);
    }
    let half = window / 2;
    let around = |i: usize| {
        let from = i.saturating_sub(half);
        let to = (i + half + 1).min(points.len());
        (sums[to] - sums[from]) / (to - from) as f64
    };
    points.iter().enumerate().map(|(i, (step, _))| (*step, around(i))).collect()
}

/// Middle step, minimum and maximum of each of at most `stretches` intervals.
pub fn band(points: &[(f64, f64)], stretches: usize) -> Vec<(f64, f64, f64)> {
    let stretch = |part: &[(f64, f64)]| {
        let values = || part.iter().map(|point| point.1);
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        (part[part.len() / 2].0, low, high)
    };
    points.chunks(points.len().div_ceil(stretches).max(1)).map(stretch).collect()
}

/// Keeps at most the minimum and the maximum of each of `stretches` intervals, so that peaks stay visible.
pub fn thin(points: &[(f64, f64)], stretches: usize) -> Vec<(f64, f64)> {
    if points.len() <= 2 * stretches {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(2 * stretches);
    for part in points.chunks(points.len().div_ceil(stretches)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let least = part.iter().min_by(by_value);
        let greatest = part.iter().max_by(by_value);
        let mut both: Vec<(f64, f64)> = least.into_iter().chain(greatest).copied().collect();
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both.dedup();
        kept.extend(both);
    }
    kept
}

/// Formats with up to four significant digits; very large and very small numbers in scientific notation.
pub fn show(value: f64) -> String {
    let size = value.abs();
    let text = if !value.is_finite() {
        return "none".into();
    } else if size == 0.0 {
        "0".into()
    } else if !(1e-3..1e7).contains(&size) {
        format!("{value:.2e}")
    } else if size >= 1000.0 {
        return format!("{}{}", if value < 0.0 { "−" } else { "" }, count(size.round() as u64));
    } else {
        let decimals = (3 - size.log10().floor() as i32).clamp(0, 4) as usize;
        let text = format!("{value:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    text.replace('-', "−")
}

/// Formats an integer with commas between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats seconds in the units that fit.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        _ if !seconds.is_finite() => "none".into(),
        _ if seconds < 0.1 => format!("{} s", show(seconds)),
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ if seconds < 60.0 => format!("{seconds:.1} s"),
        0..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Formats a count with its noun, with a plural s unless it is 1.
pub fn several(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats a share of a whole in percent.
pub fn percent(part: f64, whole: f64) -> String {
    // Rounding errors of the sums can make the share slightly negative.
    if whole > 0.0 { format!("{:.0}%", (100.0 * part / whole).max(0.0)) } else { "none".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_digits_that_its_error_leaves() {
        assert_eq!(show_mean(MeanEstimate::of(&[])), "none");
        let shown = |mean, error| show_mean(MeanEstimate { mean, error: Some(error) });
        assert_eq!(shown(-0.51234, 0.01256), "−0.512 ± 0.013");
        assert_eq!((shown(1234.5, 100.0), shown(0.5, 0.0)), ("1234 ± 100".into(), "0.5".into()));
    }

    #[test]
    fn a_smoothed_point_is_the_mean_of_its_neighbors() {
        let points: Vec<(f64, f64)> =
            [1.0, 2.0, 6.0, 4.0].into_iter().enumerate().map(|(i, v)| (i as f64, v)).collect();
        let smooth: Vec<f64> = smooth(&points, 3).into_iter().map(|(_, v)| v).collect();
        assert_eq!(smooth, [1.5, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn a_thin_curve_keeps_its_peaks_and_its_order() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        points[54_321].1 = 99.0;
        points[77_777].1 = -99.0;
        let kept = thin(&points, 300);
        assert!(kept.len() <= 600, "{}", kept.len());
        assert!(kept.contains(&(54_321.0, 99.0)) && kept.contains(&(77_777.0, -99.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(thin(&points[..600], 300).len(), 600, "few points stay as they are");
        let band = band(&points, 300);
        assert_eq!((band.len(), band[0]), (300, (167.0, 0.0, 6.0)), "of 334 points each");
        assert_eq!(band.iter().filter(|(_, low, high)| *low < 0.0 || *high > 6.0).count(), 2);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.12345, "0.1235"),
            (-0.5, "−0.5"),
            (12.345, "12.35"),
            (123.45, "123.5"),
            (1234.5, "1,235"),
            (-1_234_567.0, "−1,234,567"),
            (1e-4, "1.00e−4"),
            (2.5e9, "2.50e9"),
            (1.0, "1"),
            (f64::NAN, "none"),
        ] {
            assert_eq!(show(value), text);
        }
        assert_eq!(
            (time(0.25), time(75.0), time(7260.0)),
            ("0.25 s".into(), "1 min 15 s".into(), "2 h 1 min".into())
        );
        assert_eq!((time(200_000.0), percent(1.0, 3.0)), ("2 days 7 h".into(), "33%".into()));
    }
}
