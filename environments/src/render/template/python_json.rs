//! The filter `tojson`: what Python's `json.dumps` writes, with the same options.

use super::PLAIN_MARK;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The filter, with the options of transformers: `ensure_ascii`, `indent`, `separators` and `sort_keys`.
pub(super) fn tojson(value: &Value, ensure_ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let separators = options.get::<Option<Value>>("separators")?.filter(|pair| !pair.is_none());
    let ensure_ascii = ensure_ascii.or(options.get("ensure_ascii")?).unwrap_or(false);
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let indent = indent.map(|indent| indent_unit(&indent)).transpose()?;
    let [item, key] = match separators {
        Some(pair) => separator_pair(&pair)?,
        None if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let mut writer = JsonWriter { text: String::new(), ensure_ascii, sort_keys, indent, item, key };
    writer.value(value, 0)?;
    Ok(writer.text)
}

/// The text of one level: a number of spaces, or the text itself.
fn indent_unit(indent: &Value) -> Result<String, Error> {
    match indent.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Ok(" ".repeat(usize::try_from(i64::try_from(indent.clone())?.max(0)).unwrap_or(0))),
    }
}

fn separator_pair(pair: &Value) -> Result<[String; 2], Error> {
    let texts: Vec<String> = pair.try_iter()?.filter_map(|part| part.as_str().map(str::to_owned)).collect();
    texts
        .try_into()
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair of texts"))
}

struct JsonWriter {
    text: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    /// Separator between two items of a list or object.
    item: String,
    /// Separator between a key and its value.
    key: String,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                let problem = format!("tojson: a value of the kind {kind} is not JSON");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut is_empty = true;
        for item in value.try_iter()? {
            self.before_item(is_empty, depth);
            is_empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(is_empty, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.text.push('{');
        for (at, key) in keys.iter().enumerate() {
            self.before_item(at == 0, depth);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.text.push_str("\"null\""),
                ValueKind::Bool => {
                    self.text.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" });
                }
                _ => self.text.push_str(&format!("\"{}\"", number(key))),
            }
            self.text.push_str(&self.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(keys.is_empty(), depth, '}');
        Ok(())
    }

    fn before_item(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.text.push_str(&self.item);
        }
        self.line(depth + 1);
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: char) {
        if !is_empty {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(unit) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&unit.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\u{1f}' => self.text.push_str(&format!("\\u{:04x}", u32::from(c))),
                ' '..='~' | PLAIN_MARK => self.text.push(c),
                _ if !self.ensure_ascii => self.text.push(c),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        self.text.push('"');
    }
}

/// A value as Python's `str` writes it.
pub(super) fn printed(value: &Value) -> String {
    if value.kind() == ValueKind::Number { number(value) } else { value.to_string() }
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    let text = value.to_string();
    // An integer has neither a point nor letters.
    if !text.contains('.') && !text.contains(|c: char| c.is_ascii_alphabetic()) {
        return text;
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".into(),
        Ok(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(number) => float(number),
        Err(_) => text,
    }
}

/// The shortest digits that give the number again; exponents from 1e16 on and below 1e-4.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::float;

    /// The texts are those of Python's `repr`.
    #[test]
    fn floats_read_as_in_python() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(float(number), text);
        }
    }
}
