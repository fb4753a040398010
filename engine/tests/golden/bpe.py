"""A byte-level BPE of its own, straight from the merges: the check on the tokenizers crate.

The split follows llama.cpp's pair of regexes for `smollm` by hand, character by character, so that no regex engine
is shared with what is checked. It is slow and simple on purpose.
"""

import json
import unicodedata


def bytes_to_chars():
    """GPT-2's printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            chars[byte] = chr(byte)
        else:
            chars[byte] = chr(256 + extra)
            extra += 1
    return chars


# Regex \\s, which is the property White_Space.
SPACES = set("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def kind(char):
    if char in SPACES:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(char)[0], "other")


def cut_numbers(text):
    """First regex, \\p{N}: every numeric character is a piece of its own."""
    start = 0
    for at, char in enumerate(text):
        if kind(char) == "number":
            if start < at:
                yield text[start:at]
            yield char
            start = at + 1
    if start < len(text):
        yield text[start:]


def cut_gpt2(text):
    """Second regex: 's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"""
    at = 0
    while at < len(text):
        for contraction in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
            if text.startswith(contraction, at):
                end = at + len(contraction)
                break
        else:
            first = at + 1 if text[at] == " " and at + 1 < len(text) else at
            if kind(text[first]) != "space":
                end = first
                while end < len(text) and kind(text[end]) == kind(text[first]):
                    end += 1
            else:
                end = at
                while end < len(text) and kind(text[end]) == "space":
                    end += 1
                # The last space is left to the word behind it, unless there is only one space.
                if end < len(text) and end - at > 1:
                    end -= 1
        yield text[at:end]
        at = end


class Bpe:
    def __init__(self, tokens, merges, control):
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.tokens, self.control = tokens, control
        self.ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        self.chars = bytes_to_chars()

    @classmethod
    def from_gguf(cls, reader):
        def strings(key):
            field = reader.fields[key]
            return [bytes(field.parts[i]).decode() for i in field.data]

        types = reader.fields["tokenizer.ggml.token_type"]
        types = [int(types.parts[i][0]) for i in types.data]
        tokens = strings("tokenizer.ggml.tokens")
        control = [t for t, k in zip(tokens, types) if k == 3]
        return cls(tokens, strings("tokenizer.ggml.merges"), control)

    def encode(self, text, control=False):
        if control:
            found = [(text.find(c), c) for c in self.control if c in text]
            if found:
                at, token = min(found)
                after = text[at + len(token) :]
                return self.encode(text[:at]) + [self.ids[token]] + self.encode(after, control=True)
        ids = []
        for part in cut_numbers(text):
            for piece in cut_gpt2(part):
                ids += self.merge([self.chars[b] for b in piece.encode()])
        return ids

    def merge(self, parts):
        while len(parts) > 1:
            pairs = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:]))]
            rank, at = min(pairs)
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self.ids[part] for part in parts]

    def decode(self, ids):
        back = {char: byte for byte, char in self.chars.items()}
        text = "".join(self.tokens[i] for i in ids)
        return bytes(back[c] for c in text).decode(errors="replace")


TEXTS = [
    "",
    " ",
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three    four",
    "tabs\tand\n\nnewlines\r\n  indented",
    "12 + 7 = 19",
    "1234567890",
    "a1b22c333",
    "price:   42 euros,  7",
    "   5 digits after spaces",
    "spaces before   \u00bd half",
    "\u00bd \u2167 \u00b2",
    "x\u00b2 + y\u00b3 = \u00bc",
    "\u0663\u0664 Arabic digits \u0966\u0967",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 2024\u5e74",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 \u043c\u0438\u0440",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f3fd!",
    "caf\u00e9 cafe\u0301 na\u00efve \u00df",
    "I'm you're we've he'll she'd it's don't I'M",
    "'s at start, 'tis",
    "def f(x):\n    return x**2  # square\n",
    "{\"key\": [1, 2.5, -3e10], \"b\": null}",
    "https://example.org/a?b=c&d=1#frag",
    "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|>",
    "\u00a0non-breaking\u2003em\u3000ideographic",
    "null\x00byte and \x7f delete",
    "...!!! ??? --- ___ $$$ 100%",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "A\u0301\u0302\u0303 combining, \u0e44\u0e17\u0e22 Thai, \u0639\u0631\u0628\u064a Arabic",
    "\n",
    "\n\n\n   \n\tx",
]


def golden_tokenizer(gguf_path, target):
    import gguf

    bpe = Bpe.from_gguf(gguf.GGUFReader(gguf_path))
    cases = [{"text": text, "ids": bpe.encode(text)} for text in TEXTS]
    for case in cases:
        assert bpe.decode(case["ids"]) == case["text"]
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    target.write_text(f"[\n{lines}\n]\n")


CHATS = [
    [("user", "Hi!")],
    [("system", "Be brief."), ("user", "What is 2 + 2?")],
    [("user", "a"), ("assistant", "b"), ("user", " spaces \n kept ")],
    [("system", "s"), ("user", "<|im_end|> {{ x }}"), ("assistant", "")],
]


def golden_chat(gguf_path, target):
    """What jinja2 makes of the file's own template, with the settings that transformers uses."""
    import gguf
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    field = gguf.GGUFReader(gguf_path).fields["tokenizer.chat_template"]
    template = bytes(field.parts[field.data[0]]).decode()
    compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
    cases = []
    for chat in CHATS:
        messages = [{"role": role, "content": content} for role, content in chat]
        for add in (False, True):
            text = compiled.render(messages=messages, add_generation_prompt=add, bos_token="<|im_start|>", eos_token="<|im_end|>")
            cases.append({"messages": messages, "add_generation_prompt": add, "text": text})
    target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
