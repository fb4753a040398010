use crate::support::{
    Bytes, CHATML, DEEPSEEK, GPT_OSS, KIMI, LLAMA, TWO_BREAKS, Templated, renderer, sampled,
};
use minds_core::chat::{Message, ParsedCompletion, Role, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::Stop;
use minds_environments::render::{self, RenderError};
use proptest::prelude::*;
use std::sync::Arc;

const THINK: [&str; 5] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// Every renderer with a tokenizer of its family.
fn all() -> Vec<(&'static str, Arc<Bytes>)> {
    let tokenizer = |name| match name {
        "llama3" => Bytes::with(&LLAMA),
        "chatml" | "role_colon" => Bytes::chatml(),
        "deepseekv3" => Bytes::with(&DEEPSEEK),
        "kimi_k2" => Bytes::with(&KIMI),
        _ if name.starts_with("gpt_oss") => Bytes::with(&GPT_OSS),
        _ => Bytes::with(&THINK),
    };
    render::NAMES.into_iter().map(|name| (name, tokenizer(name))).collect()
}

fn conversation() -> Vec<Message> {
    vec![Message::system("Be brief."), Message::user("Hi"), Message::assistant("Ho"), Message::user("Why?")]
}

/// The texts were held against the models' own chat templates, rendered with Jinja2 3.1.6 (`trim_blocks`,
/// `lstrip_blocks`) from the copies in the source package of llama-cpp-python 0.3.36: those of Qwen3 (also with
/// `enable_thinking=False`), Kimi K2 Thinking and gpt-oss (`reasoning_effort="low"`, that date) give the same to the
/// letter. Its DeepSeek V3.1 differs in one place, `<think></think>` where the model's own template has `</think>`
/// alone. The templates of Llama 3.1 and later add lines with dates to the system message; the first Llama 3's does not.
#[test]
fn prompts_read_as_the_family_was_trained() {
    for (name, prompt) in [
        ("role_colon", "System: Be brief.\n\nUser: Hi\n\nAssistant: Ho\n\nUser: Why?\n\nAssistant:"),
        (
            "chatml",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo\
             <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen3",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo\
             <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen3_disable_thinking",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo\
             <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            "qwen3_instruct",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo\
             <|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3",
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nHo<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "deepseekv3",
            "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>Ho<｜end▁of▁sentence｜><｜User｜>Why?\
             <｜Assistant｜></think>",
        ),
        (
            "kimi_k2",
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>\
             <|im_assistant|>assistant<|im_middle|><think></think>Ho<|im_end|><|im_user|>user<|im_middle|>Why?<|im_end|>\
             <|im_assistant|>assistant<|im_middle|>",
        ),
        (
            "gpt_oss_no_sysprompt",
            "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|><|start|>user<|message|>Hi<|end|>\
             <|start|>assistant<|channel|>final<|message|>Ho<|end|><|start|>user<|message|>Why?<|end|><|start|>assistant",
        ),
        (
            "gpt_oss_low_reasoning",
            "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
             Knowledge cutoff: 2024-06\nCurrent date: 2025-08-05\n\nReasoning: low\n\n\
             # Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>\
             <|start|>developer<|message|># Instructions\n\nBe brief.\n\n<|end|><|start|>user<|message|>Hi<|end|>\
             <|start|>assistant<|channel|>final<|message|>Ho<|end|><|start|>user<|message|>Why?<|end|><|start|>assistant",
        ),
    ] {
        let (_, tokenizer) = all().into_iter().find(|(known, _)| *known == name).expect(name);
        let renderer = renderer(name, tokenizer.clone());
        assert_eq!(renderer.name(), name);
        let tokens = renderer.prompt(&conversation()).unwrap();
        assert_eq!(tokenizer.spell(&tokens), prompt, "{name}");
        // Markers are control tokens, not their spelling.
        assert_eq!(tokens, tokenizer.encode_with_controls(prompt), "{name}");
    }
}

/// The chat template of SmolLM2.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn smollm2() -> Arc<dyn Tokenizer> {
    Templated::new(&CHATML, SMOLLM2)
}

#[test]
fn chatml_has_no_system_line_without_a_template() {
    let tokenizer = Bytes::chatml();
    let prompt = renderer("chatml", tokenizer.clone()).prompt(&[Message::user("Hi")]).unwrap();
    assert_eq!(tokenizer.spell(&prompt), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

/// SmolLM2's template, written out.
fn smollm2_text(messages: &[Message]) -> String {
    let mut text = String::new();
    for (i, message) in messages.iter().enumerate() {
        if i == 0 && message.role != Role::System {
            text.push_str(
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\
                 <|im_end|>\n",
            );
        }
        let (role, content) = (message.role.name(), &message.content);
        text.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
    }
    text + "<|im_start|>assistant\n"
}

#[test]
fn chatml_brings_the_system_line_of_the_template_only_where_none_comes_first() {
    let tokenizer = Bytes::chatml();
    let renderer = minds_environments::render::renderer("chatml", smollm2()).unwrap();
    let late = [Message::user("Hi"), Message::system("Be brief."), Message::user("Why?")];
    for messages in [&conversation()[..], &conversation()[1..], &late, &[]] {
        let expected = tokenizer.encode_with_controls(&smollm2_text(messages));
        assert_eq!(renderer.prompt(messages).unwrap(), expected, "{messages:?}");
    }
}

#[test]
fn chatml_encodes_header_and_content_in_one_piece_and_the_others_apart() {
    let breaks = |name: &str, tokenizer: Arc<Bytes>| {
        let tokens = renderer(name, tokenizer).prompt(&[Message::system("\nHi")]).unwrap();
        tokens.iter().filter(|t| **t == TWO_BREAKS).count()
    };
    assert_eq!(breaks("chatml", Bytes::chatml()), 1);
    assert_eq!(breaks("qwen3", Bytes::with(&THINK)), 0);
}

#[test]
fn think_tags_that_are_ordinary_tokens_are_written_as_text() {
    let tokenizer = Bytes::with(&CHATML);
    let tokens =
        renderer("qwen3_disable_thinking", tokenizer.clone()).prompt(&[Message::user("Hi")]).unwrap();
    assert!(tokens.ends_with(&tokenizer.encode("assistant\n<think>\n\n</think>\n\n")));
}

#[test]
fn role_colon_starts_with_the_models_own_start_where_it_has_one() {
    let tokenizer = Arc::new(Bytes { controls: vec!["<s>"], stops: vec![], bos: Some("<s>") });
    let tokens = renderer("role_colon", tokenizer.clone()).prompt(&[Message::user("Hi")]).unwrap();
    assert_eq!(tokenizer.spell(&tokens), "<s>User: Hi\n\nAssistant:");
}

#[test]
fn a_tokenizer_of_another_family_is_refused_by_the_missing_token() {
    let error = |name: &str, controls: &[&'static str]| {
        render::renderer(name, Bytes::with(controls)).err().expect(name)
    };
    let missing = |renderer, token, family| RenderError::MissingToken { renderer, token, family };
    assert_eq!(error("chatml", &LLAMA), missing("chatml", "<|im_start|>", "ChatML (SmolLM2)"));
    assert_eq!(error("qwen3", &["<|im_start|>"]), missing("qwen3", "<|im_end|>", "Qwen3"));
    assert_eq!(error("llama3", &CHATML), missing("llama3", "<|begin_of_text|>", "Llama 3"));
    assert_eq!(
        error("llama3", &LLAMA[..3]).to_string(),
        "the renderer `llama3` needs the control token `<|eot_id|>` of Llama 3 models, which this model's tokenizer \
         lacks: choose another renderer (`role_colon` needs none)"
    );
    assert!(render::renderer("role_colon", Bytes::with(&[])).is_ok());
    assert_eq!(error("deepseekv3", &CHATML), missing("deepseekv3", "<｜begin▁of▁sentence｜>", "DeepSeek V3"));
    assert_eq!(error("kimi_k2", &CHATML), missing("kimi_k2", "<|im_system|>", "Kimi K2"));
    assert_eq!(
        error("gpt_oss_high_reasoning", &GPT_OSS[..4]),
        missing("gpt_oss_high_reasoning", "<|return|>", "gpt-oss")
    );
    for name in ["deepseekv4", "gpt_oss", "kimi_k3", "chat_ml", ""] {
        let error = render::renderer(name, Bytes::chatml()).err().expect(name);
        assert_eq!(error, RenderError::Unknown { name: name.into() });
    }
}

#[test]
fn stops_are_the_tokens_that_parse_looks_for() {
    for (name, tokenizer) in all() {
        let expected = match name {
            "role_colon" => Stop::Strings(vec!["\n\nUser:".into()]),
            "llama3" => Stop::Tokens(vec![tokenizer.named("<|eot_id|>")]),
            "deepseekv3" => Stop::Tokens(vec![tokenizer.named("<｜end▁of▁sentence｜>")]),
            name if name.starts_with("gpt_oss") => {
                Stop::Tokens(vec![tokenizer.named("<|return|>"), tokenizer.named("<|call|>")])
            }
            _ => Stop::Tokens(vec![tokenizer.named("<|im_end|>")]),
        };
        assert_eq!(renderer(name, tokenizer).stop(), expected, "{name}");
    }
}

fn parsed(text: &str, termination: Termination) -> ParsedCompletion {
    ParsedCompletion { text: text.into(), termination }
}

#[test]
fn one_stop_at_the_end_is_a_stop_none_a_cut_and_all_else_malformed() {
    use Termination::{Malformed, Stop, Truncated};
    let tokenizer = Bytes::chatml();
    for name in ["chatml", "qwen3", "qwen3_disable_thinking", "qwen3_instruct"] {
        let renderer = renderer(name, tokenizer.clone());
        for (text, result) in [
            ("[3]<|im_end|>", parsed("[3]", Stop)),
            ("<|im_end|>", parsed("", Stop)),
            ("[3]", parsed("[3]", Truncated)),
            ("", parsed("", Truncated)),
            ("[3]<|im_end|><|im_end|>", parsed("[3]", Malformed)),
            ("[3]<|im_end|>[3]", parsed("[3][3]", Malformed)),
            ("[3]<|im_start|><|im_end|>", parsed("[3]", Malformed)),
            ("[3]<|endoftext|><|im_end|>", parsed("[3]", Malformed)),
            ("[3]<|endoftext|>", parsed("[3]", Malformed)),
        ] {
            let sampled = sampled(tokenizer.encode_with_controls(text));
            assert_eq!(renderer.parse(&sampled), result, "{name}: {text}");
        }
    }
}

#[test]
fn only_the_thinking_renderer_cuts_thoughts_off() {
    let tokenizer = Bytes::chatml();
    let answer = "<think>\nhm\n</think>\n\n[3]";
    let sampled = sampled(tokenizer.encode_with_controls(&format!("{answer}<|im_end|>")));
    for (name, text) in [("qwen3", "[3]"), ("qwen3_instruct", answer), ("chatml", answer)] {
        assert_eq!(renderer(name, tokenizer.clone()).parse(&sampled).text, text, "{name}");
    }
}

#[test]
fn thoughts_are_cut_off_also_where_their_tags_are_control_tokens() {
    for (name, end, controls) in [("qwen3", "<|im_end|>", &THINK[..]), ("kimi_k2", "<|im_end|>", &KIMI)] {
        let tokenizer = Bytes::with(controls);
        let renderer = renderer(name, tokenizer.clone());
        for (turn, text) in [
            ("<think>hm</think>\n\n[3]", "[3]"),
            ("\n<think></think>[3]", "[3]"),
            ("[3]", "[3]"),
            ("[3]<think>hm</think>", "[3]hm"),
            ("<think>hm [3]", "hm [3]"),
        ] {
            let sampled = sampled(tokenizer.encode_with_controls(&format!("{turn}{end}")));
            assert_eq!(renderer.parse(&sampled), parsed(text, Termination::Stop), "{name}: {turn}");
        }
    }
}

#[test]
fn gpt_oss_answers_in_the_channel_final_after_any_number_of_thoughts() {
    use Termination::{Malformed, Stop, Truncated};
    let tokenizer = Bytes::with(&GPT_OSS);
    let renderer = renderer("gpt_oss_low_reasoning", tokenizer.clone());
    let thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
    let answer = "<|channel|>final<|message|>[3]";
    for (turn, termination) in [
        (format!("{answer}<|return|>"), Stop),
        (format!("{thought}{answer}<|return|>"), Stop),
        (format!("{thought}{thought}{answer}<|return|>"), Stop),
        (format!("{answer}<|call|>"), Malformed),
        (format!("{answer}<|end|><|return|>"), Malformed),
        (format!("{answer}<|return|><|return|>"), Malformed),
        (format!("{answer}{answer}<|return|>"), Malformed),
        (format!("{thought}<|return|>"), Malformed),
        ("<|channel|>analysis<|message|>[3]<|return|>".into(), Malformed),
        ("<|channel|>commentary<|message|>[3]<|return|>".into(), Malformed),
        ("<|channel|>final[3]<|return|>".into(), Malformed),
        ("[3]<|return|>".into(), Malformed),
        ("<|return|>".into(), Malformed),
        (format!("{thought}{answer}"), Truncated),
        (thought.into(), Truncated),
    ] {
        let result = renderer.parse(&sampled(tokenizer.encode_with_controls(&turn)));
        assert_eq!(result.termination, termination, "{turn}");
        assert!(termination != Stop || result.text == "[3]", "{turn}: {}", result.text);
    }
}

#[test]
fn the_default_line_of_kimi_comes_only_where_no_system_line_comes_first() {
    let tokenizer = Bytes::with(&KIMI);
    let prompt = |messages: &[Message]| {
        tokenizer.spell(&renderer("kimi_k2", tokenizer.clone()).prompt(messages).unwrap())
    };
    assert_eq!(
        prompt(&[Message::user("Hi")]),
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>\
         <|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>"
    );
    assert!(!prompt(&conversation()).contains("Moonshot"));
}

#[test]
fn the_system_lines_of_deepseek_come_first_wherever_they_stand() {
    let tokenizer = Bytes::with(&DEEPSEEK);
    let messages = [Message::user("Hi"), Message::system("Be brief."), Message::system("Be kind.")];
    assert_eq!(
        tokenizer.spell(&renderer("deepseekv3", tokenizer.clone()).prompt(&messages).unwrap()),
        "<｜begin▁of▁sentence｜>Be brief.\n\nBe kind.<｜User｜>Hi<｜Assistant｜></think>"
    );
}

#[test]
fn role_colon_ends_with_the_next_users_label_or_a_stop_of_the_model() {
    use Termination::{Malformed, Stop, Truncated};
    let tokenizer = Bytes::chatml();
    let renderer = renderer("role_colon", tokenizer.clone());
    for (text, result) in [
        (" [3]\n\nUser:", parsed("[3]", Stop)),
        ("[3]\n\nUser:", parsed("[3]", Stop)),
        ("  [3]\n\n\n\nUser:", parsed(" [3]\n\n", Stop)),
        (" [3]<|im_end|>", parsed("[3]", Stop)),
        (" [3]<|endoftext|>", parsed("[3]", Stop)),
        (" [3]", parsed("[3]", Truncated)),
        (" [3]\n\nUser", parsed("[3]\n\nUser", Truncated)),
        ("", parsed("", Truncated)),
        (" [3]\n\nUser: hi", parsed("[3]\n\nUser: hi", Malformed)),
        (" [3]\n\nUser:<|im_end|>", parsed("[3]\n\nUser:", Malformed)),
        (" [3]<|im_end|>\n\nUser:", parsed("[3]\n\nUser:", Malformed)),
        (" [3]<|im_end|><|im_end|>", parsed("[3]", Malformed)),
    ] {
        let sampled = sampled(tokenizer.encode_with_controls(text));
        assert_eq!(renderer.parse(&sampled), result, "{text:?}");
    }
}

/// Text that tries to be more than text.
fn content() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> =
        [&CHATML[..], &LLAMA, &DEEPSEEK, &KIMI, &GPT_OSS, &["\n\nUser:", "\n"]].concat();
    let piece = prop_oneof![prop::sample::select(names).prop_map(String::from), "\\PC{0,6}"];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let role = prop::sample::select(vec![Role::System, Role::User, Role::Assistant]);
    prop::collection::vec((role, content()).prop_map(|(role, content)| Message { role, content }), 0..5)
}

fn controls(tokens: &[Token]) -> Vec<Token> {
    tokens.iter().copied().filter(|token| *token >= 1000).collect()
}

proptest! {
    #[test]
    fn content_never_adds_a_control_token(messages in messages()) {
        for (name, tokenizer) in all() {
            let renderer = renderer(name, tokenizer);
            let opening = controls(&renderer.answer("x"));
            let bland = messages.iter().map(|m| Message { role: m.role, content: "x".into() });
            let expected = controls(&renderer.prompt(&bland.collect::<Vec<_>>()).unwrap());
            prop_assert_eq!(controls(&renderer.prompt(&messages).unwrap()), expected, "{}", name);
            for message in &messages {
                prop_assert_eq!(&controls(&renderer.answer(&message.content)), &opening, "{}", name);
            }
        }
    }

    #[test]
    fn chatml_is_the_template_for_any_content_without_markers(texts in prop::collection::vec("[a-z\n ]{0,8}", 0..4)) {
        let tokenizer = Bytes::chatml();
        let messages: Vec<Message> = texts.into_iter().map(Message::user).collect();
        let expected = tokenizer.encode_with_controls(&smollm2_text(&messages));
        let chatml = render::renderer("chatml", smollm2()).unwrap();
        prop_assert_eq!(chatml.prompt(&messages).unwrap(), expected);
    }

    #[test]
    fn an_answer_that_is_rendered_is_parsed_back(text in "[^<\n]{0,12}") {
        for (name, tokenizer) in all() {
            let renderer = renderer(name, tokenizer.clone());
            let mut tokens = renderer.answer(&text);
            prop_assert_eq!(renderer.parse(&sampled(tokens.clone())).termination, Termination::Truncated);
            match renderer.stop() {
                Stop::Tokens(stops) => tokens.push(stops[0]),
                Stop::Strings(stops) => tokens.extend(tokenizer.encode(&stops[0])),
                Stop::ModelDefault => unreachable!("every renderer names its stop"),
            }
            prop_assert_eq!(renderer.parse(&sampled(tokens)), parsed(&text, Termination::Stop), "{}", name);
        }
    }

    #[test]
    fn parsing_never_panics(tokens in prop::collection::vec(prop_oneof![0_u32..260, 1000_u32..1010], 0..20)) {
        for (name, tokenizer) in all() {
            let has_stop = tokens.iter().any(|t| *t >= 1000);
            let parsed = renderer(name, tokenizer).parse(&sampled(tokens.clone()));
            prop_assert!(has_stop || name == "role_colon" || parsed.termination == Termination::Truncated);
        }
    }

    /// What makes several turns one training sequence. With thinking disabled the prompt of qwen3 holds an empty
    /// think block that the history lacks; gpt-oss ends older turns with another marker than the one it stops at.
    #[test]
    fn the_next_prompt_extends_what_was_sampled(answer in "[a-z ]{0,8}") {
        let extends = |name: &str| name != "qwen3_disable_thinking" && !name.starts_with("gpt_oss");
        for (name, tokenizer) in all().into_iter().filter(|(name, _)| extends(name)) {
            let renderer = renderer(name, tokenizer.clone());
            let mut messages = vec![Message::user("Hi")];
            let mut history = renderer.prompt(&messages).unwrap();
            history.extend(renderer.answer(&answer));
            match renderer.stop() {
                Stop::Tokens(stops) => history.push(stops[0]),
                Stop::Strings(stops) => history.extend(tokenizer.encode(&stops[0])),
                Stop::ModelDefault => unreachable!("every renderer names its stop"),
            }
            messages.extend([Message::assistant(answer.clone()), Message::user("Why?")]);
            prop_assert!(renderer.prompt(&messages).unwrap().starts_with(&history), "{}", name);
        }
    }
}
