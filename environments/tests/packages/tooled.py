"""verifiers with tools: the model looks a word up and then says what it found."""

import verifiers as vf
from datasets import Dataset


async def look_up(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word
    """
    return {"rain": "water from clouds"}.get(word, "unknown")


def told(completion, answer, **_):
    return float(completion[-1]["content"].strip() == answer)


def turns(state, **_):
    return len(state["trajectory"])


def load_environment():
    dataset = Dataset.from_list([{"question": "What is rain?", "answer": "water from clouds"}])
    rubric = vf.Rubric(funcs=[told, turns], weights=[1.0, 0.0])
    return vf.ToolEnv(tools=[look_up], dataset=dataset, rubric=rubric, max_turns=5)
