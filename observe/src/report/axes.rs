//! Axes of charts: ranges, units and labels.

use super::chart::{Chart, Curve};
use std::borrow::Cow;
use std::ops::Range;

/// Larger values are drawn in units of this, since their sums and differences could overflow.
const HUGE: f64 = 1e200;

/// The chart, scaled so that its values do not overflow, and the unit of its values.
pub fn sized(chart: &Chart) -> (Cow<'_, Chart>, f64) {
    let points = |curve: &Curve| curve.points.iter().any(|(_, value)| value.abs() > HUGE);
    let ends = |curve: &Curve| {
        curve.intervals.iter().any(|(_, range)| range.start.abs().max(range.end.abs()) > HUGE)
    };
    if !chart.curves.iter().any(|curve| points(curve) || ends(curve)) {
        return (Cow::Borrowed(chart), 1.0);
    }
    let mut chart = chart.clone();
    for curve in &mut chart.curves {
        curve.points.iter_mut().for_each(|(_, value)| *value /= HUGE);
        curve.intervals.iter_mut().for_each(|(_, range)| *range = range.start / HUGE..range.end / HUGE);
    }
    (Cow::Owned(chart), HUGE)
}

/// Ranges of the x and y axes: all steps of the curves and of `steps`; all values, and 0 if it is near.
pub fn ranges(chart: &Chart, steps: &[u64]) -> (Range<f64>, Range<f64>) {
    let points = || chart.curves.iter().flat_map(|curve| &curve.points);
    let ends = chart
        .curves
        .iter()
        .flat_map(|curve| &curve.intervals)
        .flat_map(|(_, range)| [range.start, range.end]);
    let steps = span(points().map(|point| point.0).chain(steps.iter().map(|step| *step as f64)))
        .unwrap_or((0.0, 1.0));
    let (mut low, mut high) = span(points().map(|point| point.1).chain(ends)).unwrap_or((0.0, 1.0));
    if low == high {
        let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        (low, high) = (low - room, high + room);
    }
    let room = (high - low) * 0.06;
    let zero_is_near = low >= 0.0 && low < 0.4 * high;
    let y = (if zero_is_near { 0.0 } else { low - room })..(high + room);
    let x = if steps.0 < steps.1 { steps.0..steps.1 } else { steps.0 - 1.0..steps.1 + 1.0 };
    (x, y)
}

fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |span, value| match span {
        None => Some((value, value)),
        Some((low, high)) => Some((f64::min(low, value), f64::max(high, value))),
    })
}

/// Number of decimals that keep the labels of an axis distinct.
pub fn decimals(range: &Range<f64>) -> usize {
    let gap = (range.end - range.start) / 5.0;
    (1.0 - gap.log10().floor()).clamp(0.0, 20.0) as usize
}

/// Label of a value on an axis, with `decimals` decimals unless it is very large or very small.
pub fn label(value: f64, decimals: usize) -> String {
    let size = value.abs();
    let (value, unit) = match size {
        1e15.. => return format!("{value:.1e}").replace('-', "−"),
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match (unit, decimals) {
        ("", 7..) if size > 0.0 => return format!("{value:.1e}").replace('-', "−"),
        ("", decimals) => decimals,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let text = if text == "-0" { "0" } else { text };
    format!("{}{unit}", text.replace('-', "−"))
}

/// Label of a step; empty for fractional values.
pub fn step_label(step: f64) -> String {
    if step.fract() == 0.0 { label(step, 0) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::tests::chart;

    #[test]
    fn axes_hold_all_values_and_zero_where_it_is_near() {
        assert_eq!(ranges(&chart(&[0.1, 1.0]), &[]).1.start, 0.0);
        let (x, y) = ranges(&chart(&[0.8, 1.0, 0.9]), &[2, 9]);
        assert_eq!(x, 1.0..9.0);
        assert!(y.start > 0.7 && y.start < 0.8 && y.end > 1.0);
        let (x, y) = ranges(&chart(&[0.5]), &[1]);
        assert!(x.contains(&1.0) && y.contains(&0.5) && y.start < y.end);
        assert_eq!(ranges(&chart(&[]), &[]), (0.0..1.0, 0.0..1.06));
    }

    #[test]
    fn labels_are_short_and_differ() {
        assert_eq!(
            (label(0.30000000000000004, decimals(&(0.0..1.0))), label(0.0, 2)),
            ("0.3".into(), "0".into())
        );
        assert_eq!(
            (label(-1.5, 1), label(25_000.0, 0), label(2.5e6, 0)),
            ("−1.5".into(), "25k".into(), "2.5M".into())
        );
        assert_eq!((label(-2e200, 0), label(3e12, 0)), ("−2.0e200".into(), "3000G".into()));
        let small = 0.0..1e-6;
        assert_eq!(label(2e-7, decimals(&small)), "2.0e−7");
        assert_eq!((step_label(40.0), step_label(40.5)), ("40".into(), String::new()));
    }
}
