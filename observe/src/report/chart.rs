//! Charts of curves, drawn by the same code for pages and for pictures.
//!
//! A chart is drawn on a canvas of four times its size, so that whole pixels are fine enough for a page; a picture
//! takes the mean of each square of four. The font is embedded, so that a chart looks the same on every machine.

use super::ReportError;
use super::axes::{decimals, label, ranges, sized, step_label};
use super::numbers::{band, smooth, thin};
use super::palette;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Circle, PathElement, Polygon};
use plotters::prelude::{DrawingBackend, SVGBackend};
use plotters::series::LineSeries;
use plotters::style::{Color as _, FontStyle, IntoFont as _, ShapeStyle, TRANSPARENT, register_font};
use std::ops::Range;
use std::sync::OnceLock;

/// Canvas pixels per pixel of a chart.
pub const SCALE: u32 = 4;
/// Name under which the font is registered.
pub const FONT: &str = "sans-serif";
/// Inter (SIL Open Font License, `font/OFL.txt`), the Latin letters and symbols that charts need.
static FONT_FILE: &[u8] = include_bytes!("font/Inter-Regular.ttf");

/// Font size of the axis labels, in pixels.
const LETTERS: u32 = 14;
/// Below this number of points, each one is shown and nothing is smoothed.
const FEW: usize = 10;
/// The smoothing window is the number of points divided by this.
const SMOOTH: usize = 25;
/// Number of intervals of which a curve shows the minimum and the maximum.
const STRETCHES: usize = 300;

/// A chart over the steps of a run.
#[derive(Clone)]
pub struct Chart {
    /// Title, without the unit.
    pub title: String,
    /// Unit of the values, or a note on reading them.
    pub unit: String,
    /// Curves that share the axes.
    pub curves: Vec<Curve>,
}

/// How the points of a curve are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveStyle {
    /// By a smoothed line that connects all points.
    Smooth,
    /// By a smoothed line with gaps where steps have no value.
    Gaps,
    /// By a line without smoothing: each value already covers several steps.
    Plain,
}

/// One curve of a chart.
#[derive(Clone)]
pub struct Curve {
    /// Name in the legend; empty if it is the only curve.
    pub name: String,
    /// Index of its color in the palette.
    pub colour: usize,
    /// Pairs of step and value in the order of the steps; all finite.
    pub points: Vec<(f64, f64)>,
    /// How the points are joined.
    pub course: CurveStyle,
    /// Pairs of step and confidence interval, for evaluations.
    pub intervals: Vec<(f64, Range<f64>)>,
}

impl Curve {
    /// Creates a smooth curve through the finite points.
    pub fn new(name: &str, colour: usize, mut points: Vec<(f64, f64)>) -> Self {
        points.retain(|(step, value)| step.is_finite() && value.is_finite());
        Self { name: name.into(), colour, points, course: CurveStyle::Smooth, intervals: Vec::new() }
    }

    /// Whether the curve is drawn smoothed, with its points behind it.
    fn is_smoothed(&self) -> bool {
        self.course != CurveStyle::Plain && self.intervals.is_empty() && window(self.points.len()).is_some()
    }

    /// Splits the points of a line at visible gaps.
    fn pieces<'a>(&self, points: &'a [(f64, f64)]) -> Vec<&'a [(f64, f64)]> {
        let (Some(first), Some(last), CurveStyle::Gaps) = (points.first(), points.last(), self.course) else {
            return vec![points];
        };
        let least = ((last.0 - first.0) / STRETCHES as f64).max(1.0);
        points.chunk_by(|a, b| b.0 - a.0 <= least).collect()
    }
}

impl Chart {
    /// Whether no curve has any points.
    pub fn is_empty(&self) -> bool {
        self.curves.iter().all(|curve| curve.points.is_empty())
    }
}

/// Smoothing window for a curve of `points` points; `None` if it has too few.
pub fn window(points: usize) -> Option<usize> {
    (points >= FEW).then(|| (points / SMOOTH).max(5) | 1)
}

/// Kind of surface that a chart is drawn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawSurface {
    /// SVG elements of a page.
    Page,
    /// Pixels of a bitmap image.
    Picture,
}

/// SVG elements of the chart, without the enclosing `<svg>`. The x axis covers at least these steps.
///
/// # Errors
/// The drawing library returned an error.
pub fn svg(chart: &Chart, size: (u32, u32), steps: &[u64]) -> Result<String, ReportError> {
    let mut text = String::new();
    {
        let canvas = SVGBackend::with_string(&mut text, (size.0 * SCALE, size.1 * SCALE)).into_drawing_area();
        draw(&canvas, chart, steps, DrawSurface::Page)?;
        canvas.present()?;
    }
    let inside = text.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</svg>"));
    Ok(inside.map(|(inside, _)| inside.trim().to_owned()).unwrap_or_default())
}

/// Draws the curves with their axes.
///
/// # Errors
/// The drawing library returned an error.
pub fn draw<B: DrawingBackend<ErrorType: 'static>>(
    canvas: &DrawingArea<B, Shift>,
    chart: &Chart,
    steps: &[u64],
    surface: DrawSurface,
) -> Result<(), ReportError> {
    learn_font()?;
    let (chart, unit) = &sized(chart);
    let (x, y) = ranges(chart, steps);
    let pixels = |n: u32| n * SCALE;
    let mut context = ChartBuilder::on(canvas)
        .margin_top(pixels(8))
        .margin_right(pixels(10))
        .x_label_area_size(pixels(22))
        .y_label_area_size(pixels(46))
        .build_cartesian_2d(x, y.clone())?;
    let writing = (FONT, f64::from(pixels(LETTERS))).into_font().color(&palette::writing());
    let decimals = decimals(&y);
    let (_, height) = context.plotting_area().dim_in_pixel();
    // The library centers labels on the line of text, not on the digits, and differently for each surface.
    let nudge = if surface == DrawSurface::Picture { pixels(LETTERS) as i32 / 5 } else { SCALE as i32 };
    context
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(palette::grid().stroke_width(SCALE))
        .light_line_style(TRANSPARENT)
        .axis_style(TRANSPARENT)
        .set_all_tick_mark_size(pixels(3))
        .x_labels(6)
        .y_labels((height / pixels(22)) as usize)
        .y_label_offset(nudge)
        .x_label_formatter(&|step| step_label(*step))
        .y_label_formatter(&|value| label((value * unit).clamp(f64::MIN, f64::MAX), decimals))
        .label_style(writing)
        .draw()?;
    for curve in &chart.curves {
        draw_points(&mut context, curve, surface)?;
    }
    // Drawn last, above the unsmoothed points.
    for curve in &chart.curves {
        draw_course(&mut context, curve, surface)?;
    }
    Ok(())
}

type PlotContext<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the points behind a smoothed curve, or the band they lie in if there are many.
fn draw_points<B: DrawingBackend<ErrorType: 'static>>(
    context: &mut PlotContext<'_, B>,
    curve: &Curve,
    surface: DrawSurface,
) -> Result<(), ReportError> {
    let (_, faint) = palette::line(curve.colour);
    if !curve.is_smoothed() {
        return Ok(());
    }
    if curve.points.len() <= 2 * STRETCHES {
        for piece in curve.pieces(&curve.points) {
            draw_line(context, piece, faint.stroke_width(SCALE), surface)?;
        }
        return Ok(());
    }
    let band = band(&curve.points, STRETCHES);
    let above = band.iter().map(|(step, _, high)| (*step, *high));
    let below = band.iter().rev().map(|(step, low, _)| (*step, *low));
    context.draw_series([Polygon::new(above.chain(below).collect::<Vec<_>>(), faint.filled())])?;
    Ok(())
}

/// Draws the smoothed curve, or the points themselves if they are few or have intervals.
fn draw_course<B: DrawingBackend<ErrorType: 'static>>(
    context: &mut PlotContext<'_, B>,
    curve: &Curve,
    surface: DrawSurface,
) -> Result<(), ReportError> {
    let (strong, _) = palette::line(curve.colour);
    let window = window(curve.points.len()).filter(|_| curve.is_smoothed());
    let course = match window {
        Some(window) => smooth(&curve.points, window),
        None => curve.points.clone(),
    };
    let is_dotted = !curve.intervals.is_empty() || curve.points.len() < FEW;
    // Split before thinning, which would leave gaps everywhere.
    for piece in curve.pieces(&course) {
        match piece {
            [point] if !is_dotted => {
                context.draw_series([Circle::new(*point, SCALE, strong.filled())])?;
            }
            _ => draw_line(context, &thin(piece, STRETCHES), strong.stroke_width(2 * SCALE), surface)?,
        }
    }
    let intervals = curve.intervals.iter().map(|(step, interval)| {
        PathElement::new(vec![(*step, interval.start), (*step, interval.end)], strong.stroke_width(SCALE))
    });
    context.draw_series(intervals)?;
    if is_dotted {
        let dot = |point: &(f64, f64)| Circle::new(*point, 3 * SCALE, strong.filled());
        context.draw_series(curve.points.iter().map(dot))?;
    }
    Ok(())
}

fn draw_line<B: DrawingBackend<ErrorType: 'static>>(
    context: &mut PlotContext<'_, B>,
    points: &[(f64, f64)],
    style: ShapeStyle,
    surface: DrawSurface,
) -> Result<(), ReportError> {
    match surface {
        DrawSurface::Page => context.draw_series(LineSeries::new(points.iter().copied(), style)).map(drop)?,
        // Drawn as one path, sharp turns get spikes, because the library fills the polygon around the line.
        DrawSurface::Picture => {
            let pairs = points.windows(2).map(|pair| PathElement::new(pair.to_vec(), style));
            context.draw_series(pairs).map(drop)?;
        }
    }
    Ok(())
}

/// Registers the font; later calls return the first result.
///
/// # Errors
/// The font cannot be read.
pub fn learn_font() -> Result<(), ReportError> {
    static LEARNT: OnceLock<bool> = OnceLock::new();
    let learnt = LEARNT.get_or_init(|| register_font(FONT, FontStyle::Normal, FONT_FILE).is_ok());
    if *learnt { Ok(()) } else { Err(ReportError::Drawing("the font cannot be read".into())) }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A chart of one curve whose values are those of the steps from 1.
    pub fn chart(values: &[f64]) -> Chart {
        let points = values.iter().enumerate().map(|(i, value)| (i as f64 + 1.0, *value)).collect();
        Chart { title: "reward".into(), unit: String::new(), curves: vec![Curve::new("", 0, points)] }
    }

    /// 1e308 − (−1e308) overflows to infinity.
    #[test]
    fn values_whose_difference_overflows_are_drawn_with_true_labels() {
        let huge = [0.0, 1e308, 5.0, -1e308, f64::MAX, f64::MIN];
        for values in [&huge[..], &huge.repeat(10), &huge.repeat(1000)] {
            let mut chart = chart(values);
            chart.curves[0].intervals = vec![(1.0, f64::MIN..f64::MAX)];
            let drawing = svg(&chart, (440, 200), &[]).unwrap();
            assert!(drawing.contains("1.0e308") && drawing.contains("−1.0e308"), "{drawing:.3000}");
            assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing:.3000}");
        }
        let points = vec![(1.0, f64::NAN), (2.0, 1.0), (3.0, f64::INFINITY)];
        assert_eq!(Curve::new("", 0, points).points, [(2.0, 1.0)]);
    }

    #[test]
    fn a_drawing_has_its_points_and_their_course_and_no_element_around_it() {
        let drawing = |count: u32| {
            let values: Vec<f64> = (0..count).map(|i| f64::from(i % 10)).collect();
            svg(&chart(&values), (440, 200), &[]).unwrap()
        };
        let [few, some, many] = [drawing(1), drawing(60), drawing(100_000)];
        assert!(!some.contains("<svg") && !some.contains("</svg"), "{some}");
        let count = |drawing: &str| {
            ["<polyline", "<polygon", "<circle"].map(|element| drawing.matches(element).count())
        };
        assert_eq!(count(&few)[2], 1, "a dot");
        assert_eq!(count(&some), [2, 0, 0], "each point, and the smooth course");
        assert_eq!(count(&many), [1, 1, 0], "a band, and the smooth course");
        assert!(many.len() < 30_000, "{}", many.len());
        svg(&chart(&[]), (440, 200), &[]).unwrap();
    }

    #[test]
    fn a_gap_is_left_where_steps_have_no_value() {
        // Steps 1 to 10, 14, and 20 to 30: two lines and a dot between them.
        let steps = (1..=10).chain([14]).chain(20..=30);
        let points: Vec<(f64, f64)> = steps.map(|step| (f64::from(step), f64::from(step % 3))).collect();
        let count = |course| {
            let mut chart = chart(&[]);
            chart.curves = vec![Curve { course, ..Curve::new("", 0, points.clone()) }];
            let drawing = svg(&chart, (440, 200), &[]).unwrap();
            ["<polyline", "<circle"].map(|element| drawing.matches(element).count())
        };
        assert_eq!(count(CurveStyle::Smooth), [2, 0], "each point, and the smooth course");
        assert_eq!(count(CurveStyle::Gaps), [5, 1], "of each point three lines, one of no length");
        assert_eq!(count(CurveStyle::Plain), [1, 0]);
    }
}
