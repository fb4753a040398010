use super::*;
use crate::render;
use minds_core::chat::Tokenizer;
use minds_core::demonstration::supervised_data;
use minds_core::ids::Token;
use std::collections::HashSet;
use std::fs;

/// A byte is a token, and the three control tokens of `chatml` follow.
struct Bytes;

const CONTROLS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn control(&self, name: &str) -> Option<Token> {
        CONTROLS.iter().position(|control| *control == name).map(|at| 256 + at as Token)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab(&self) -> usize {
        256 + CONTROLS.len()
    }

    fn stop_tokens(&self) -> Vec<Token> {
        vec![257, 258]
    }

    fn bos(&self) -> Option<Token> {
        None
    }
}

/// Text with control tokens spelled out.
fn spelled(tokens: &[Token]) -> String {
    tokens
        .iter()
        .map(|token| match u8::try_from(*token) {
            Ok(byte) => char::from(byte).to_string(),
            Err(_) => CONTROLS[*token as usize - 256].to_owned(),
        })
        .collect()
}

fn opened(lines: &str, train_on: TrainedTurns, held_out: f64) -> Result<DemonstrationSet, String> {
    split(lines, train_on, held_out, DemonstrationSplit::Train)
}

fn split(
    lines: &str,
    train_on: TrainedTurns,
    held_out: f64,
    part: DemonstrationSplit,
) -> Result<DemonstrationSet, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    fs::write(&path, lines).unwrap();
    let options = DemonstrationOptions { data: path.display().to_string(), train_on, held_out };
    let shown = format!("{}/", folder.path().display());
    DemonstrationSet::open(&options, part).map_err(|error| error.to_string().replace(&shown, ""))
}

fn turns(set: &DemonstrationSet) -> Vec<(String, String)> {
    let renderer = render::renderer("chatml", Arc::new(Bytes)).unwrap();
    let turns = set.turns(&set.item(0), &*renderer, 4096).unwrap();
    turns.iter().map(|turn| (spelled(&turn.prompt), spelled(&turn.completion))).collect()
}

const TALK: &str = r#"{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"},
 {"role": "user", "content": "+1"}, {"role": "assistant", "content": "3"}]}"#;

#[test]
fn the_chosen_turns_of_the_assistant_are_imitated_with_their_stop() {
    let talk = TALK.replace('\n', "");
    let first = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n";
    let second = format!("{first}2<|im_end|>\n<|im_start|>user\n+1<|im_end|>\n<|im_start|>assistant\n");
    let last = (second.clone(), "3<|im_end|>".to_owned());
    let set = opened(&talk, TrainedTurns::LastAssistant, 0.0).unwrap();
    assert_eq!(turns(&set), std::slice::from_ref(&last));
    let set = opened(&talk, TrainedTurns::AllAssistant, 0.0).unwrap();
    assert_eq!(turns(&set), [(first.to_owned(), "2<|im_end|>".to_owned()), last]);
    // Both turns are in one datum: the second prompt extends the first turn.
    let renderer = render::renderer("chatml", Arc::new(Bytes)).unwrap();
    let data = supervised_data(&set.turns(&set.item(0), &*renderer, 4096).unwrap()).unwrap();
    assert_eq!((data.len(), data[0].trained_tokens()), (1, 4));
}

#[test]
fn a_prompt_and_a_completion_are_a_conversation() {
    let set = opened(r#"{"prompt": "1+1", "completion": "2"}"#, TrainedTurns::Completion, 0.0).unwrap();
    let prompt = "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(turns(&set), [(prompt.to_owned(), "2<|im_end|>".to_owned())]);
    // What the assistant said in the prompt is not imitated.
    let row = r#"{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}"#;
    let set = opened(&row.replace('\n', ""), TrainedTurns::Completion, 0.0).unwrap();
    assert_eq!(turns(&set).len(), 1);
    assert_eq!(turns(&set)[0].1, "d<|im_end|>");
}

#[test]
fn a_control_token_in_a_message_stays_text() {
    let row = r#"{"prompt": "<|im_end|>", "completion": "<|im_start|>"}"#;
    let set = opened(row, TrainedTurns::LastAssistant, 0.0).unwrap();
    let renderer = render::renderer("chatml", Arc::new(Bytes)).unwrap();
    let turn = set.turns(&set.item(0), &*renderer, 4096).unwrap().pop().unwrap();
    let controls = |tokens: &[Token]| tokens.iter().filter(|token| **token > 255).count();
    assert_eq!((controls(&turn.prompt), controls(&turn.completion)), (3, 1));
}

#[test]
fn a_row_that_does_not_fit_the_context_is_an_error_with_its_place() {
    let set = opened("{\"prompt\": \"a\", \"completion\": \"b\"}", TrainedTurns::LastAssistant, 0.0).unwrap();
    let renderer = render::renderer("chatml", Arc::new(Bytes)).unwrap();
    let error = set.turns(&set.item(0), &*renderer, 8).unwrap_err().to_string();
    assert!(error.contains("x.jsonl:1 has ") && error.contains("the model reads 8"), "{error}");
}

#[test]
fn a_wrong_row_is_an_error_that_names_its_line_and_what_it_needs() {
    let good = r#"{"prompt": "a", "completion": "b"}"#;
    for (row, why) in [
        (
            r#"{"question": "a"}"#,
            "the row needs `messages`, or `prompt` and `completion`; its columns are `question`",
        ),
        (r#"{"messages": []}"#, "`messages` is empty"),
        (r#"{"messages": 3}"#, "`messages` is a number; it must be a list of objects"),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "no message to imitate has the role `assistant`",
        ),
        (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, "it begins with the assistant"),
        (r#"{"messages": [{"role": "bot", "content": "a"}]}"#, "message 0 has the role `bot`"),
        (r#"{"messages": [{"role": "user", "content": ["a"]}]}"#, "the content of message 0 is an array"),
        (r#"{"prompt": "a", "completion": null}"#, "`completion` is null"),
    ] {
        let error = opened(&format!("{good}\n{row}"), TrainedTurns::LastAssistant, 0.0).err().unwrap();
        assert!(error.starts_with("x.jsonl:2: ") && error.contains(why), "{row}: {error}");
    }
    let error = opened(TALK.replace('\n', "").as_str(), TrainedTurns::Completion, 0.0).err().unwrap();
    assert!(error.contains("needs the columns `prompt` and `completion`"), "{error}");
}

#[test]
fn rows_are_held_out_by_their_content_and_no_row_is_on_both_sides() {
    let rows: Vec<String> =
        (0..400).map(|n| format!("{{\"prompt\": \"{n}\", \"completion\": \"{n}\"}}")).collect();
    let prompts = |lines: &[String], part| -> HashSet<String> {
        let set = split(&lines.join("\n"), TrainedTurns::LastAssistant, 0.1, part).unwrap();
        (0..set.items().get()).map(|n| set.item(n).prompt[0].content.clone()).collect()
    };
    let train = prompts(&rows, DemonstrationSplit::Train);
    let held_out = prompts(&rows, DemonstrationSplit::HeldOut);
    assert!(train.is_disjoint(&held_out) && train.len() + held_out.len() == 400);
    // 40 ± 6 in a binomial draw of 400 with a share of a tenth.
    assert!((20..=60).contains(&held_out.len()), "{}", held_out.len());
    let fewer = prompts(&rows[..200], DemonstrationSplit::HeldOut);
    assert!(fewer.is_subset(&held_out), "adding rows moves no other");
    // Of few rows at least one.
    let few =
        [prompts(&rows[..3], DemonstrationSplit::Train), prompts(&rows[..3], DemonstrationSplit::HeldOut)];
    assert!(!few[1].is_empty() && few[0].len() + few[1].len() == 3, "{few:?}");
    let error = split(&rows[0], TrainedTurns::LastAssistant, 0.0, DemonstrationSplit::HeldOut).err().unwrap();
    assert!(error.contains("none is held out"), "{error}");
}
