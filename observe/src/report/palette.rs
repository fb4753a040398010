//! Colors of charts, for light and dark backgrounds.
//!
//! Charts are drawn in the light colors; a page maps each to a named style, which follows the reader's color scheme.

use plotters::style::RGBColor;
use serde::{Serialize, Serializer};

/// A named color in its light and dark variants.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ChartColor {
    /// Name in style sheets.
    pub name: &'static str,
    /// On white; unique among the inks.
    pub light: Rgb,
    /// On a dark background.
    pub dark: Rgb,
}

/// A color as `0xRRGGBB` in sRGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(u32);

impl Rgb {
    /// Converts to the drawing library's type.
    pub fn colour(self) -> RGBColor {
        let [_, red, green, blue] = self.0.to_be_bytes();
        RGBColor(red, green, blue)
    }
}

impl Serialize for Rgb {
    /// Writes `#RRGGBB`, as the drawing library does.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("#{:06X}", self.0))
    }
}

/// Number of distinct curve colors.
pub const LINES: usize = 6;

/// Colors of a curve: a strong one for the line, a faint one for its unsmoothed points.
pub fn line(n: usize) -> (RGBColor, RGBColor) {
    let n = n % LINES;
    (INKS[n].light.colour(), INKS[LINES + n].light.colour())
}

/// Color of the grid lines.
pub fn grid() -> RGBColor {
    INKS[2 * LINES].light.colour()
}

/// Color of text in charts.
pub fn writing() -> RGBColor {
    INKS[2 * LINES + 1].light.colour()
}

const fn ink(name: &'static str, light: u32, dark: u32) -> ChartColor {
    ChartColor { name, light: Rgb(light), dark: Rgb(dark) }
}

/// All colors: curves, their faint variants, grid, text.
pub const INKS: [ChartColor; 2 * LINES + 2] = [
    ink("line0", 0x3366D6, 0x7AA2FF),
    ink("line1", 0xD9730D, 0xF2A65A),
    ink("line2", 0x1B8F6A, 0x4CC9A0),
    ink("line3", 0x9A4FC4, 0xC792EA),
    ink("line4", 0xC7375A, 0xFF7A93),
    ink("line5", 0x6B7280, 0xA7AFBD),
    ink("faint0", 0xC3D3F5, 0x2D3F6B),
    ink("faint1", 0xF7D9BC, 0x5E4122),
    ink("faint2", 0xBFE3D7, 0x1F4F42),
    ink("faint3", 0xE3CDEF, 0x4A3560),
    ink("faint4", 0xF2C6D0, 0x64303E),
    ink("faint5", 0xD8DBE0, 0x41464F),
    ink("grid", 0xE6E8EC, 0x2B3038),
    ink("writing", 0x5B6370, 0x9AA3B0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_inks_are_distinguishable() {
        for (n, ink) in INKS.iter().enumerate() {
            assert!(
                INKS[..n].iter().all(|other| other.light != ink.light && other.name != ink.name),
                "{ink:?}"
            );
        }
        let text = serde_json::to_value(INKS[0]).unwrap();
        assert_eq!((&text["light"], &text["dark"]), (&"#3366D6".into(), &"#7AA2FF".into()));
    }
}
