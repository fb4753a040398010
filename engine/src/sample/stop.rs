//! The condition that ends a sample.
//!
//! The token that completes a stop is the sample's last; nothing after it is ever drawn. Text is decoded piece by
//! piece: each token is decoded at most a bounded number of times, and a character whose bytes are spread over
//! several tokens is seen whole. Decoded text leaves control tokens out, so a stop string that is the name of one stands
//! for the token.

use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use minds_core::sampling::Stop;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Most tokens that are decoded again while the text ends within a character. Only a run of broken bytes is
/// longer.
const WINDOW: usize = 64;

/// The stop condition for the samples of one request.
#[derive(Clone)]
pub enum StopRule {
    /// Any of these tokens.
    Tokens(Arc<[Token]>),
    /// Any of these strings in the decoded text.
    Strings {
        /// The strings; none is empty, none contains the name of a control token.
        strings: Arc<[String]>,
        /// End tokens of the model and those that stop strings name, which also stop.
        ends: Arc<[Token]>,
        /// How tokens become text. Texts of consecutive tokens must concatenate, as those of byte-level
        /// vocabularies do.
        tokenizer: Arc<dyn Tokenizer>,
    },
}

impl fmt::Debug for StopRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => f.debug_tuple("Tokens").field(tokens).finish(),
            Self::Strings { strings, .. } => f.debug_tuple("Strings").field(strings).finish(),
        }
    }
}

impl StopRule {
    /// Resolves a request's stop.
    ///
    /// # Errors
    /// A stop that no text can match.
    pub fn new(
        stop: &Stop,
        default: &Arc<[Token]>,
        tokenizer: Option<&Arc<dyn Tokenizer>>,
    ) -> Result<Self, StopError> {
        let strings = match stop {
            Stop::ModelDefault => return Ok(Self::Tokens(default.clone())),
            Stop::Tokens(tokens) => return Ok(Self::Tokens(tokens.as_slice().into())),
            Stop::Strings(strings) if strings.is_empty() => return Ok(Self::Tokens(Arc::new([]))),
            Stop::Strings(strings) => strings,
        };
        let tokenizer = tokenizer.ok_or(StopError::NoTokenizer)?;
        let mut ends = default.to_vec();
        let mut texts = Vec::new();
        for string in strings {
            match (tokenizer.control(string), control_within(string, &**tokenizer)) {
                (Some(token), _) => ends.push(token),
                (None, Some(control)) => {
                    return Err(StopError::ControlWithin { stop: string.clone(), control: control.into() });
                }
                (None, None) => texts.push(string.clone()),
            }
        }
        if texts.is_empty() {
            return Ok(Self::Tokens(ends.into()));
        }
        Ok(Self::Strings { strings: texts.into(), ends: ends.into(), tokenizer: tokenizer.clone() })
    }
}

/// Why a stop cannot be matched.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StopError {
    /// Text needs a tokenizer.
    #[error("stop strings need a tokenizer, the engine has none")]
    NoTokenizer,
    /// Decoded text has no control tokens, so a string with one and more text never occurs.
    #[error(
        "the stop string {stop:?} contains the control token {control}, which is one token and no text: name it alone, \
         or leave it out"
    )]
    ControlWithin {
        /// The stop string, as given.
        stop: String,
        /// Name of the control token in it.
        control: String,
    },
}

/// Longest name of a control token that is found within a stop string, in bytes.
const LONGEST_CONTROL: usize = 64;

/// The earliest name of a control token inside a stop string. Names above [`LONGEST_CONTROL`] bytes are missed.
fn control_within<'a>(stop: &'a str, tokenizer: &dyn Tokenizer) -> Option<&'a str> {
    let starts = stop.char_indices().map(|(start, _)| start);
    let mut parts = starts.flat_map(|start| {
        let ends = stop[start..].char_indices().map(move |(at, c)| start + at + c.len_utf8());
        ends.take_while(move |end| end - start <= LONGEST_CONTROL).map(move |end| &stop[start..end])
    });
    parts.find(|part| tokenizer.control(part).is_some())
}

/// Whether a sample continues after its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStatus {
    /// No stop is complete yet.
    Running,
    /// The last token completed a stop.
    Stopped,
}

/// Checks one sample for its stop.
#[derive(Clone, Debug)]
pub struct StopScanner {
    rule: StopRule,
    /// End of the settled text, just long enough that a stop can begin in it.
    tail: String,
    /// Tokens whose text is settled.
    settled: usize,
}

impl StopScanner {
    /// Creates a scanner for an empty sample.
    #[must_use]
    pub fn new(rule: StopRule) -> Self {
        Self { rule, tail: String::new(), settled: 0 }
    }

    /// Checks the sample after one more token.
    pub fn check(&mut self, tokens: &[Token]) -> StopStatus {
        let stopped = |stops: &[Token]| tokens.last().is_some_and(|last| stops.contains(last));
        let (strings, tokenizer) = match &self.rule {
            StopRule::Tokens(stops) => {
                return if stopped(stops) { StopStatus::Stopped } else { StopStatus::Running };
            }
            StopRule::Strings { ends, .. } if stopped(ends) => return StopStatus::Stopped,
            StopRule::Strings { strings, tokenizer, .. } => (strings, tokenizer),
        };
        let text = format!("{}{}", self.tail, tokenizer.decode(&tokens[self.settled..]));
        if strings.iter().any(|s| text.contains(s.as_str())) {
            return StopStatus::Stopped;
        }
        if !text.ends_with(char::REPLACEMENT_CHARACTER) || tokens.len() - self.settled >= WINDOW {
            let longest = strings.iter().map(String::len).max().unwrap_or(0);
            let mut from = (text.len() + 1).saturating_sub(longest);
            while !text.is_char_boundary(from) {
                from -= 1;
            }
            self.tail = text[from..].into();
            self.settled = tokens.len();
        }
        StopStatus::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Token = byte; remembers how much it was asked to decode.
    struct Bytes(Mutex<usize>);

    impl Tokenizer for Bytes {
        fn encode(&self, text: &str) -> Vec<Token> {
            text.bytes().map(Token::from).collect()
        }
        fn control(&self, name: &str) -> Option<Token> {
            (name == "<end>").then_some(300)
        }
        fn decode(&self, tokens: &[Token]) -> String {
            *self.0.lock().unwrap() += tokens.len();
            String::from_utf8_lossy(&tokens.iter().map(|t| *t as u8).collect::<Vec<_>>()).into_owned()
        }
        fn vocab(&self) -> usize {
            256
        }
        fn stop_tokens(&self) -> Vec<Token> {
            vec![]
        }
        fn bos(&self) -> Option<Token> {
            None
        }
    }

    /// Feeds the bytes of `text` one by one; how many were taken, the stop included, and how many decoded.
    fn taken(text: &[u8], stops: &[&str]) -> (Option<usize>, usize) {
        let counting = Arc::new(Bytes(Mutex::new(0)));
        let tokenizer: Arc<dyn Tokenizer> = counting.clone();
        let stop = Stop::Strings(stops.iter().map(|s| (*s).into()).collect());
        let none: Arc<[Token]> = Arc::new([]);
        let mut scan = StopScanner::new(StopRule::new(&stop, &none, Some(&tokenizer)).unwrap());
        let tokens: Vec<Token> = text.iter().map(|b| Token::from(*b)).collect();
        let end = (1..=tokens.len()).find(|n| scan.check(&tokens[..*n]) == StopStatus::Stopped);
        let decoded = *counting.0.lock().unwrap();
        (end, decoded)
    }

    #[test]
    fn a_string_stops_at_the_token_that_completes_it() {
        for (text, stops, end) in [
            ("abcdef", vec!["cd"], Some(4)),
            ("abcdef", vec!["f", "b"], Some(2)),
            ("aaab", vec!["aab"], Some(4)),
            ("abcdef", vec!["x"], None),
            ("né!", vec!["é"], Some(3)),
            ("日本語", vec!["本"], Some(6)),
            ("日本語", vec!["日本語"], Some(9)),
            ("abc", vec!["abcd"], None),
        ] {
            assert_eq!(taken(text.as_bytes(), &stops).0, end, "{text} {stops:?}");
        }
    }

    #[test]
    fn text_is_decoded_once_and_broken_bytes_a_bounded_number_of_times() {
        assert_eq!(taken("x".repeat(1000).as_bytes(), &["yy"]).1, 1000);
        let mut broken = vec![0xff; 1000];
        broken.extend(b"stop");
        let (end, decoded) = taken(&broken, &["stop"]);
        assert_eq!(end, Some(1004));
        assert!(decoded < 1004 * WINDOW, "{decoded}");
    }

    #[test]
    fn an_empty_list_never_stops_and_the_default_is_the_models() {
        let default: Arc<[Token]> = Arc::new([9]);
        let ending = |stop: Stop, tokens: &[Token]| {
            StopScanner::new(StopRule::new(&stop, &default, None).unwrap()).check(tokens)
        };
        assert_eq!(ending(Stop::ModelDefault, &[9]), StopStatus::Stopped);
        assert_eq!(ending(Stop::ModelDefault, &[9, 8]), StopStatus::Running);
        assert_eq!(ending(Stop::Tokens(vec![]), &[9]), StopStatus::Running);
        assert_eq!(ending(Stop::Tokens(vec![1, 2]), &[2]), StopStatus::Stopped);
        assert_eq!(ending(Stop::Strings(vec![]), &[9]), StopStatus::Running);
        let text = Stop::Strings(vec!["x".into()]);
        assert_eq!(StopRule::new(&text, &default, None).unwrap_err(), StopError::NoTokenizer);
    }

    #[test]
    fn the_name_of_a_control_token_stops_at_the_token_and_not_at_its_spelling() {
        let tokenizer: Arc<dyn Tokenizer> = Arc::new(Bytes(Mutex::new(0)));
        let default: Arc<[Token]> = Arc::new([9]);
        let rule = |stops: &[&str]| {
            let stop = Stop::Strings(stops.iter().map(|s| (*s).into()).collect());
            StopRule::new(&stop, &default, Some(&tokenizer))
        };
        let spelled: Vec<Token> = "<end>".bytes().map(Token::from).collect();
        for stops in [&["<end>"][..], &["<end>", "xyz"]] {
            let mut scan = StopScanner::new(rule(stops).unwrap());
            assert_eq!(scan.check(&spelled), StopStatus::Running, "{stops:?}");
            assert_eq!(scan.check(&[&spelled[..], &[300]].concat()), StopStatus::Stopped, "{stops:?}");
            let mut scan = StopScanner::new(rule(stops).unwrap());
            assert_eq!(scan.check(&[9]), StopStatus::Stopped, "the model's own end stops too");
        }
        let error = rule(&["\n<end>"]).unwrap_err();
        assert_eq!(error, StopError::ControlWithin { stop: "\n<end>".into(), control: "<end>".into() });
    }
}
