//! Chat templates render as transformers renders them.

use minds_core::chat::Message;
use minds_models::render_template;

fn render(template: &str, messages: &[Message], add: bool) -> Result<String, String> {
    render_template(template, messages, add, "<s>", "</s>").map_err(|e| e.to_string())
}

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[test]
fn chatml_renders() {
    let messages = [Message::system("s"), Message::user("u {{ 1 }}")];
    let turns = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu {{ 1 }}<|im_end|>\n";
    assert_eq!(render(CHATML, &messages, false).unwrap(), turns);
    assert_eq!(render(CHATML, &messages, true).unwrap(), format!("{turns}<|im_start|>assistant\n"));
}

#[test]
fn blocks_are_trimmed_and_python_methods_work() {
    let template = "{% if true %}\n  {{ bos_token }}{{ messages[0].content.strip() }}\n{% endif %}\n{{ messages[0]['content'].startswith(' x') }}";
    assert_eq!(render(template, &[Message::user(" x ")], false).unwrap(), "  <s>x\nTrue");
}

#[test]
fn a_template_can_refuse() {
    let said = render("{{ raise_exception('no system turn') }}", &[], false).unwrap_err();
    assert!(said.contains("no system turn"), "{said}");
    assert!(render("{% if", &[], false).unwrap_err().contains("template"));
}
