"""verifiers with everything that the original trainer hands to a package, read where it puts it, and with rows of types
that have no JSON."""

import datetime

import verifiers as vf
from datasets import Dataset

WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000)


async def likely(completion, info, state, **_):
    """The logprob of the last two letters of "cats" to the policy that played."""
    assert info is state["info"] or info == state["info"], "rewards are given what the state holds"
    client, tokenizer = info["tinker_client"], info["tokenizer"]
    tokens = tokenizer.encode("cats", add_special_tokens=False)
    logprobs = await client.compute_logprobs_async(tokens)
    return sum(logprobs[-2:])


def row_is_own(info, answer, when, raw, **_):
    same = when == WHEN and type(when) is datetime.datetime and raw == b"\x00\xff" and info["word"] == "cats"
    return float(same and answer == "right")


def was_handed(state, **_):
    return state["seen"]


class Env(vf.SingleTurnEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.state = {"left": "by nobody"}

    async def rollout(self, input, client, *args, **kwargs):
        assert self.state == {}, "a rollout begins with an empty state"
        self.state["mine"] = True
        assert "tinker_client" not in input["info"], "the library copies its input"
        prompt = client.renderer.build_generation_prompt([{"role": "user", "content": "hi"}])
        rendered = client.tokenizer.decode(prompt.to_ints())
        logprobs = await client.sampling_client.compute_logprobs_async(client.tokenizer.encode("ab"))
        state = await super().rollout(input, client, *args, **kwargs)
        state["seen"] = float("hi" in rendered and len(logprobs) == 2)
        return state


def together(completions, infos, **_) -> list[float]:
    return [float("tinker_client" in info and "tokenizer" in info) for info in infos]


def load_environment(group=False):
    row = {"question": "Say a word.", "answer": "right", "info": {"word": "cats"}, "when": WHEN, "raw": b"\x00\xff"}
    funcs = [together] if group else [likely, row_is_own, was_handed]
    return Env(dataset=Dataset.from_list([row] * 2), rubric=vf.Rubric(funcs=funcs, weights=[1.0] * len(funcs)))
