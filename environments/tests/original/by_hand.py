"""The rewards of the original packages, from their own functions, called without anything of the worker.

A case on standard input is `[package, arguments, prompt, answer, row]`; a reward for each goes to standard output, and
nothing where the function raises. The policy is that of the tests: a byte is a token, and so are two line breaks; a
token's logprob is minus a hundredth of its value, halved by a step on a borrowed adapter. The working directory is the
checkout. `sys.argv[1]` is the folder of the stand-ins for names of the Tinker SDK.
"""

import asyncio
import importlib
import inspect
import json
import re
import sys

sys.path[:0] = [".", sys.argv[1]]
from minds_host import sdk  # noqa: E402

sdk.install_stubs()
import tinker  # noqa: E402


class Tokenizer:
    def encode(self, text, **_):
        return [256 if piece == b"\n\n" else piece[0] for piece in re.findall(rb"\n\n|[\x00-\xff]", text.encode())]

    def decode(self, tokens, **_):
        return b"".join(b"\n\n" if token == 256 else bytes([token]) for token in tokens).decode("utf-8", "replace")


class Client:
    """Samples have no text, so packages fall back to logprobs."""

    tokenizer = Tokenizer()

    async def compute_logprobs_async(self, prompt):
        tokens = prompt.to_ints()
        return [None, *(-token / 100 for token in tokens[1:])]

    async def sample_async(self, **_):
        return sdk.SampleResponse(sequences=[])


class Training:
    def __init__(self):
        self.steps = 0

    async def forward_async(self, data, loss_fn):
        rows = [[-token / 100 / 2**self.steps for token in sdk.ints(d.loss_fn_inputs["target_tokens"])] for d in data]
        return sdk.forward_output({"logprobs": rows, "metrics": {}})

    async def forward_backward_async(self, data, loss_fn):
        return await self.forward_async(data, loss_fn)

    async def optim_step_async(self, adam):
        self.steps += 1


class Service:
    async def create_lora_training_client_async(self, **_):
        return Training()


class Renderer:
    tokenizer = Client.tokenizer

    def parse_response(self, tokens):
        return {"role": "assistant", "content": self.tokenizer.decode(tokens)}, True

    def build_generation_prompt(self, messages):
        return tinker.ModelInput.from_ints(self.tokenizer.encode(messages[-1]["content"]))

    def get_stop_sequences(self):
        return []


async def waited(value):
    return await value if inspect.isawaitable(value) else value


async def by_rubric(env, prompt, answer, row):
    """As the original adapter has a rollout scored: clients in `info`, and a state that begins empty."""
    completion = [{"role": "assistant", "content": answer}]
    info = {**(row.get("info") or {}), "tinker_client": Client(), "tokenizer": Client.tokenizer}
    state, total, rubrics = {"info": info}, 0.0, [env.rubric]
    for rubric in rubrics:
        rubrics += getattr(rubric, "rubrics", [])
        for function, weight in zip(getattr(rubric, "funcs", []), getattr(rubric, "weights", [])):
            if weight:
                total += weight * await waited(function(prompt, completion, row.get("answer", ""), state, info))
    return total


async def by_intuition(builder, prompt, answer):
    """A step of the environment that was shown this prompt."""
    env = builder.build(Client(), service_client=Service(), base_model="m", training_client=None)[0]
    env.renderer = Renderer()
    shown = prompt[-1]["content"]
    base = shown.split("\n\n---\nMeta-Task: ")[0]
    word = re.search(r"Target: (.*?)\. Task:", base).group(1)
    sample = {"prompt": base, "info": {"target_word": word}}
    env.inner_env.state = {"sample": sample}
    env._current_sample, env._current_prompt = sample, base
    found = [re.search(f'^{name}: "(.*)"$', shown, re.MULTILINE).group(1) for name in ("Probe", "Probe target answer")]
    env._current_probe = dict(zip(("question", "answer"), found))
    return (await env.step(Client.tokenizer.encode(answer))).reward


async def reward(package, args, prompt, answer, row):
    module = importlib.import_module(f"environments.{package}.{package}")
    env = module.load_environment(**args)
    if package == "gradient_intuition":
        return await by_intuition(env, prompt, answer)
    if package == "gradient_prophet":
        all_of_them = env.build(Client())
        shown = next(one for one in all_of_them if one.sample["prompt"] in prompt[-1]["content"])
        return (await shown.step(answer)).reward
    return await by_rubric(env, prompt, answer, row)


def main():
    found = []
    for case in json.load(sys.stdin):
        try:
            found.append(asyncio.run(reward(*case)))
        except Exception as error:
            print(f"{case[0]}: {type(error).__name__}: {error}", file=sys.stderr)
            found.append(None)
    print("\n" + json.dumps(found))


main()
