"""verifiers with a reward that compares members, some of which never end."""

import asyncio

import verifiers as vf
from datasets import Dataset


class Hanging(vf.SingleTurnEnv):
    async def rollout(self, input, client, model, sampling_args=None):
        state = await super().rollout(input, client, model, sampling_args)
        if state["completion"][-1]["content"].strip() == "hang":
            await asyncio.sleep(600)
        return state


async def shortest(completions, **_) -> list[float]:
    said = [completion[-1]["content"].strip() for completion in completions]
    if "compare for ever" in said:
        await asyncio.sleep(600)
    return [float(len(one) == min(map(len, said))) for one in said]


def load_environment():
    dataset = Dataset.from_list([{"question": "Say little.", "answer": ""}] * 3)
    return Hanging(dataset=dataset, rubric=vf.Rubric(funcs=[shortest]))
