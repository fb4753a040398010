//! Methods of Python's `str`, `dict` and `list` that templates call.
//!
//! Those of `minijinja_contrib` serve where they agree with Python; the ones here are missing there or differ in what
//! counts as whitespace or as the end of a line.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Calls a method on a value that has no such method of its own.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq => sequence(value, method, args),
        ValueKind::Map => map(value, method, args),
        _ => Ok(None),
    };
    match own? {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// The filter `trim`: what `str.strip` leaves.
pub(super) fn trim(value: &Value, chars: Option<String>) -> String {
    let text = value.to_string();
    stripped(&text, chars.as_deref(), true, true).to_owned()
}

/// `str.isspace`: Unicode whitespace and the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn stripped<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right { text.trim_end_matches(matches) } else { text }
}

fn string(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(stripped(text, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, limit, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(options.get("sep")?).filter(|sep| !sep.is_none());
            let limit = limit.or(options.get("maxsplit")?).and_then(|limit| usize::try_from(limit).ok());
            options.assert_all_used()?;
            let parts = match separator.as_ref().and_then(Value::as_str) {
                Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                Some(separator) => split(text, separator, limit, method == "rsplit"),
                None => split_at_spaces(text, limit, method == "rsplit"),
            };
            Value::from_iter(parts.into_iter().map(Value::from))
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Value::from_iter(lines(text, keep.unwrap_or(false)).into_iter().map(Value::from))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let is_last = method == "rpartition";
            let found = if is_last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if is_last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from).to_vec()))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(is_space))
        }
        "casefold" => Value::from(text.to_lowercase()),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let missing = bounded(width)?.saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = bounded(width)?.saturating_sub(text.chars().count());
            let padding = fill.unwrap_or(" ").repeat(missing);
            Value::from(if method == "ljust" {
                format!("{text}{padding}")
            } else {
                format!("{padding}{text}")
            })
        }
        _ => return Ok(None),
    }))
}

fn sequence(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => value.clone(),
        "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            Value::from(at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "value is not in list"))?)
        }
        _ => return Ok(None),
    }))
}

fn map(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => value.clone(),
        "get" => {
            let (key, default): (Value, Option<Value>) = from_args(args)?;
            let found = value.get_item(&key)?;
            if found.is_undefined() { default.unwrap_or(Value::from(())) } else { found }
        }
        _ => return Ok(None),
    }))
}

/// A width that a template may ask for.
fn bounded(width: usize) -> Result<usize, Error> {
    if width <= 1 << 16 {
        return Ok(width);
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a text of {width} characters is too wide")))
}

fn split<'a>(text: &'a str, separator: &str, limit: Option<usize>, from_end: bool) -> Vec<&'a str> {
    match (limit, from_end) {
        (None, _) => text.split(separator).collect(),
        (Some(limit), false) => text.splitn(limit.saturating_add(1), separator).collect(),
        (Some(limit), true) => {
            let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
    }
}

fn split_at_spaces(text: &str, limit: Option<usize>, from_end: bool) -> Vec<&str> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = stripped(text, None, !from_end, from_end);
    if from_end {
        while parts.len() < limit
            && let Some(at) = rest.rfind(is_space)
        {
            let width = rest[at..].chars().next().map_or(1, char::len_utf8);
            parts.push(&rest[at + width..]);
            rest = stripped(&rest[..at], None, false, true);
        }
    } else {
        while parts.len() < limit
            && let Some(at) = rest.find(is_space)
        {
            parts.push(&rest[..at]);
            rest = stripped(&rest[at..], None, true, false);
        }
    }
    // The part that the limit leaves keeps the whitespace on its other side.
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_end {
        parts.reverse();
    }
    parts
}

/// `str.splitlines`, with all line breaks of Unicode.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_break) {
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        found.push(&rest[..if keep { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    found
}
