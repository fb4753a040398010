//! Reads files by line whose content is not trusted.
//!
//! No line takes more memory than a given number of bytes: a longer one is left out and counted.

use std::io::{self, BufRead, Read as _};

/// Maximum bytes of a line of numbers, including its end.
pub const NUMBERS: u64 = 4 << 20;
/// Maximum bytes of a line with completions or with the items of a run, including its end.
pub const TEXTS: u64 = 64 << 20;
/// Maximum number of damaged places that are named.
const NAMED: usize = 5;

/// The lines of a file, one at a time.
pub struct BoundedLines<R> {
    file: R,
    longest: u64,
    buffer: Vec<u8>,
    number: u64,
    at: u64,
}

/// One line of a file.
#[derive(Debug, PartialEq)]
pub struct FileLine<'a> {
    /// Line number, from 1.
    pub number: u64,
    /// Byte offset of its start.
    pub at: u64,
    /// Bytes of the line, including its end; `None` if it is too long.
    pub text: Option<&'a [u8]>,
}

impl<R: BufRead> BoundedLines<R> {
    /// Reads lines of at most `longest` bytes, including their ends.
    pub fn new(file: R, longest: u64) -> Self {
        Self { file, longest, buffer: Vec::new(), number: 0, at: 0 }
    }

    /// What the lines were read from, after the last line that was read.
    pub fn into_inner(self) -> R {
        self.file
    }

    /// The next line, if there is one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self) -> io::Result<Option<FileLine<'_>>> {
        self.buffer.clear();
        let mut bytes = (&mut self.file).take(self.longest + 1).read_until(b'\n', &mut self.buffer)? as u64;
        if bytes == 0 {
            return Ok(None);
        }
        let fits = bytes <= self.longest;
        if !fits && !self.buffer.ends_with(b"\n") {
            bytes += self.file.skip_until(b'\n')? as u64;
        }
        let at = self.at;
        self.at += bytes;
        self.number += 1;
        Ok(Some(FileLine { number: self.number, at, text: fits.then_some(&self.buffer) }))
    }
}

/// Lines of a file that were left out: counted, the first ones named.
#[derive(Debug, Default)]
pub struct SkippedLines {
    /// The first damaged places.
    pub first: Vec<String>,
    /// Number of all damaged places.
    pub count: u64,
    /// Lines that are too long.
    pub long: u64,
}

impl SkippedLines {
    /// Counts a damaged place; names it if few are named.
    pub fn add(&mut self, place: impl FnOnce() -> String) {
        if self.first.len() < NAMED {
            self.first.push(place());
        }
        self.count += 1;
    }

    /// Whether no line was left out.
    pub fn is_none(&self) -> bool {
        self.count == 0 && self.long == 0
    }

    /// Notes about the file for the reader; lines may have up to `longest` bytes.
    pub fn notes(&self, name: &str, longest: u64) -> Vec<String> {
        let mut notes = Vec::new();
        let more = match self.count - self.first.len() as u64 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        if self.count > 0 {
            notes.push(format!("{name}: damaged lines are left out: {}{more}", self.first.join(", ")));
        }
        if self.long > 0 {
            notes.push(format!(
                "{name}: lines of more than {} MiB are left out: {}",
                longest >> 20,
                self.long
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_passed_by_and_the_next_is_read() {
        let mut lines = BoundedLines::new(&b"abc\nabcd\n0123456789\n\nxy"[..], 4);
        let mut all = Vec::new();
        while let Some(line) = lines.read().unwrap() {
            all.push((line.number, line.at, line.text.map(<[u8]>::to_vec)));
        }
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let expected =
            [(1, 0, text("abc\n")), (2, 4, None), (3, 9, None), (4, 20, text("\n")), (5, 21, text("xy"))];
        assert_eq!(all, expected, "four bytes with the end of the line");
    }

    #[test]
    fn a_line_without_an_end_stays_within_its_memory() {
        let endless = io::BufReader::new(io::repeat(b'x').take(100 << 20));
        let mut lines = BoundedLines::new(endless, 1000);
        assert_eq!(lines.read().unwrap(), Some(FileLine { number: 1, at: 0, text: None }));
        assert!(lines.read().unwrap().is_none());
        assert!(lines.buffer.capacity() < 10_000, "{}", lines.buffer.capacity());
    }

    #[test]
    fn the_first_damaged_places_are_named_and_all_are_counted() {
        let mut damage = SkippedLines::default();
        assert!(damage.is_none() && damage.notes("f", NUMBERS).is_empty());
        (1..=7).for_each(|line| damage.add(|| line.to_string()));
        damage.long = 2;
        let told = [
            "f: damaged lines are left out: 1, 2, 3, 4, 5 and 2 more",
            "f: lines of more than 4 MiB are left out: 2",
        ];
        assert_eq!(damage.notes("f", NUMBERS), told);
    }
}
