//! From a completion to the text that is verified: thoughts are removed, then one step selects a part.

/// Part of the answer that is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extraction {
    /// The whole answer, without thoughts.
    Whole,
    /// What the last `\boxed{…}` holds.
    Boxed,
    /// The last line that is not blank.
    LastLine,
    /// What follows the last occurrence of a marker: the rest of its line, or the next line that is not blank.
    After(String),
    /// What the last `<name>…</name>` holds.
    Tag(String),
}

impl Extraction {
    /// Forms that an extraction can be written in.
    pub(super) const ALLOWED: &str = "`whole`, `boxed`, `last_line`, `after:MARKER` or `tag:NAME`";

    /// Reads an extraction as configs write it.
    pub(super) fn parse(written: &str) -> Option<Self> {
        match (written, written.split_once(':')) {
            ("whole", _) => Some(Self::Whole),
            ("boxed", _) => Some(Self::Boxed),
            ("last_line", _) => Some(Self::LastLine),
            (_, Some(("after", marker))) if !marker.trim().is_empty() => Some(Self::After(marker.into())),
            (_, Some(("tag", name)))
                if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)) =>
            {
                Some(Self::Tag(name.into()))
            }
            _ => None,
        }
    }

    /// The part of an answer without thoughts; `None` where it is missing or blank.
    pub(super) fn apply<'a>(&self, answer: &'a str) -> Option<&'a str> {
        let part = match self {
            Self::Whole => Some(answer),
            Self::Boxed => boxed(answer),
            Self::LastLine => answer.lines().rev().find(|line| !line.trim().is_empty()),
            Self::After(marker) => {
                let (_, rest) = answer.rsplit_once(marker.as_str())?;
                rest.lines().find(|line| !line.trim().is_empty())
            }
            Self::Tag(name) => {
                let open = format!("<{name}>");
                let close = format!("</{name}>");
                let end = answer.rfind(&close)?;
                let start = answer[..end].rfind(&open)? + open.len();
                Some(&answer[start..end])
            }
        };
        part.map(str::trim).filter(|part| !part.is_empty())
    }
}

/// The answer after the model's thoughts: what follows the last `</think>`. `None` where thoughts do not end.
pub(super) fn without_thoughts(completion: &str) -> Option<&str> {
    let answer = completion.rsplit_once("</think>").map_or(completion, |(_, answer)| answer);
    (!answer.contains("<think>")).then_some(answer)
}

/// What the last `\boxed{…}` holds, with braces balanced. A last one that is not closed hides those before it.
fn boxed(answer: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let start = answer.rfind(OPEN)? + OPEN.len();
    let inner = &answer[start..];
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inner[..at]);
        }
    }
    None
}

/// What the last code block of one of these languages, or of none, holds. A block that is not closed is not one.
pub(super) fn code_block<'a>(answer: &'a str, languages: &[&str]) -> Option<&'a str> {
    let mut open: Option<(usize, bool)> = None;
    let mut found = None;
    let mut at = 0;
    for line in answer.split_inclusive('\n') {
        let fence = line.trim();
        match (open, fence.strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_lowercase();
                open = Some((at + line.len(), language.is_empty() || languages.contains(&&*language)));
            }
            (Some((start, is_wanted)), Some("")) => {
                if is_wanted {
                    found = Some(&answer[start..at]);
                }
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_selects_its_part() {
        for (written, answer, part) in [
            ("whole", " a\nb ", Some("a\nb")),
            ("whole", " \n", None),
            ("boxed", r"so \boxed{\frac{1}{2}} or \boxed{3}.", Some("3")),
            ("boxed", r"\boxed{\{1, 2\}}", Some(r"\{1, 2\}")),
            ("boxed", r"\boxed{4} then \boxed{5", None),
            ("boxed", r"\boxed{ }", None),
            ("boxed", "42", None),
            ("last_line", "a\nb\n \n", Some("b")),
            ("after:####", "#### 1\n#### 2 apples\nbye", Some("2 apples")),
            ("after:Answer:", "Answer:\n\n 7\n8", Some("7")),
            ("after:Answer:", "answer: 7", None),
            ("tag:answer", "<answer>1</answer><answer>2</answer> 3", Some("2")),
            ("tag:answer", "<answer>1", None),
            ("tag:answer", "</answer>1<answer>", None),
        ] {
            let extraction = Extraction::parse(written).expect(written);
            assert_eq!(extraction.apply(answer), part, "{written} {answer:?}");
        }
        for wrong in ["", "box", "after:", "after: ", "tag:", "tag:a b", "after", "Boxed"] {
            assert_eq!(Extraction::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn thoughts_are_removed_and_thoughts_without_an_end_leave_nothing() {
        for (completion, answer) in [
            ("7", Some("7")),
            ("<think>7</think>8", Some("8")),
            // Some templates open the thoughts in the prompt.
            ("it is 7</think>\n8", Some("\n8")),
            ("<think>7</think>8</think>9", Some("9")),
            ("<think>7", None),
            ("<think>a</think><think>7", None),
        ] {
            assert_eq!(without_thoughts(completion), answer, "{completion}");
        }
    }
}
