//! The most telling curves of a run as one PNG, for a README or a paper.

use super::ReportError;
use super::chart::{self, Chart, DrawSurface, FONT, SCALE};
use super::palette;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Rectangle, Text};
use plotters::prelude::BitMapBackend;
use plotters::style::{Color as _, IntoFont as _, WHITE};

/// Width and height of a panel, in pixels of a page.
const PANEL: (u32, u32) = (520, 270);
/// Picture pixels per pixel of a page.
const SHARPNESS: u32 = 2;
/// Canvas pixels per picture pixel, in both directions.
const FINER: usize = (SCALE / SHARPNESS) as usize;
const BYTES: usize = 3;

/// Encodes the charts as a PNG, two in a row, at twice the resolution of a page.
///
/// # Errors
/// The drawing library returned an error.
pub fn png(charts: &[Chart], steps: &[u64]) -> Result<Vec<u8>, ReportError> {
    let columns = charts.len().clamp(1, 2);
    let rows = charts.len().div_ceil(columns).max(1);
    let width = PANEL.0 * columns as u32;
    let height = PANEL.1 * rows as u32;
    let wide = width * SCALE;
    let high = height * SCALE;
    let mut canvas = vec![0; wide as usize * high as usize * BYTES];
    {
        let whole = BitMapBackend::with_buffer(&mut canvas, (wide, high)).into_drawing_area();
        whole.fill(&WHITE)?;
        let panels = whole.split_evenly((rows, columns));
        for (panel, chart) in panels.iter().zip(charts) {
            draw_panel(panel, chart, steps)?;
        }
        whole.present()?;
    }
    let pixels = shrink(&canvas, wide as usize);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width * SHARPNESS, height * SHARPNESS);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(file)
}

/// Draws a panel: title, legend and curves.
fn draw_panel(
    panel: &DrawingArea<BitMapBackend<'_>, Shift>,
    chart: &Chart,
    steps: &[u64],
) -> Result<(), ReportError> {
    chart::learn_font()?;
    let pixels = |n: u32| (n * SCALE) as i32;
    let font = |size: u32| (FONT, f64::from(size * SCALE)).into_font();
    let panel = panel.margin(pixels(8), pixels(6), pixels(10), pixels(10));
    let (head, body) = panel.split_vertically(pixels(42));
    let title = font(18).color(&TITLE);
    head.draw(&Text::new(chart.title.clone(), (pixels(6), pixels(2)), title))?;
    let legend = font(13).color(&palette::writing());
    let mut x = pixels(6);
    let y = pixels(24);
    let write = |text: &str, x: &mut i32| -> Result<(), ReportError> {
        head.draw(&Text::new(text.to_owned(), (*x, y), legend.clone()))?;
        let (width, _) = head.estimate_text_size(text, &legend)?;
        *x += width as i32 + pixels(12);
        Ok(())
    };
    write(&chart.unit, &mut x)?;
    for curve in chart.curves.iter().filter(|curve| !curve.name.is_empty()) {
        let (strong, _) = palette::line(curve.colour);
        let key = [(x, y + pixels(5)), (x + pixels(14), y + pixels(8))];
        head.draw(&Rectangle::new(key, strong.filled()))?;
        x += pixels(18);
        write(&curve.name, &mut x)?;
    }
    chart::draw(&body, chart, steps, DrawSurface::Picture)
}

const TITLE: plotters::style::RGBColor = plotters::style::RGBColor(0x1C, 0x1F, 0x26);

/// Averages each square of canvas pixels, which smooths the jagged lines of the library.
fn shrink(canvas: &[u8], wide: usize) -> Vec<u8> {
    let width = wide / FINER;
    let mut picture = Vec::with_capacity(canvas.len() / (FINER * FINER));
    for rows in canvas.chunks_exact(wide * BYTES * FINER) {
        for x in 0..width {
            for byte in 0..BYTES {
                let mut sum = 0;
                for row in rows.chunks_exact(wide * BYTES) {
                    for i in 0..FINER {
                        sum += usize::from(row[(x * FINER + i) * BYTES + byte]);
                    }
                }
                picture.push((sum / (FINER * FINER)) as u8);
            }
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::Curve;

    #[test]
    fn a_square_of_the_canvas_becomes_its_mean() {
        let row = |left: u8, right: u8| [[left; 3], [left; 3], [right; 3], [right; 3]].concat();
        let canvas = [row(0, 8), row(4, 8)].concat();
        assert_eq!(shrink(&canvas, 4), [2, 2, 2, 8, 8, 8]);
    }

    #[test]
    fn a_picture_is_twice_as_fine_as_a_page_and_has_ink() {
        let curve = || Curve::new("a", 0, (0..50).map(|i| (f64::from(i), f64::from(i % 5))).collect());
        let chart = || Chart { title: "t".into(), unit: "u".into(), curves: vec![curve()] };
        for (charts, size) in [(0, (1040, 540)), (1, (1040, 540)), (3, (2080, 1080))] {
            let charts: Vec<Chart> = (0..charts).map(|_| chart()).collect();
            let file = png(&charts, &[]).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
            let info = reader.info();
            assert_eq!((info.width, info.height), size);
            let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut pixels).unwrap();
            assert_eq!(pixels.iter().any(|byte| *byte < 128), !charts.is_empty());
        }
    }
}
