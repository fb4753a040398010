"""A complete environment of the verifiers library, 0.1 to 0.3: count the letters of a word.

It needs a Python with `verifiers` (at most 0.3.1) and `datasets`: `python -m venv .venv`, then
`.venv/bin/pip install 'verifiers==0.3.1'`. `minds-actors run configs/python_verifiers.toml` trains it.
"""

import verifiers as vf
from datasets import Dataset

WORDS = ["rain", "stone", "lamp", "river", "cloud", "bread", "northern", "glass", "tiger", "smile", "wheels", "paper"]


def counted(completion, answer, **_):
    """1 for the right number."""
    return float(completion[-1]["content"].strip() == answer)


def digits(completion, **_):
    """The share of digits: something to learn before the first right answer."""
    text = completion[-1]["content"].strip()
    return sum(c.isdigit() for c in text) / max(1, len(text))


def load_environment(rows=64):
    words = [WORDS[i % len(WORDS)] for i in range(rows)]
    dataset = Dataset.from_list([{"question": f"How many letters has {w}?", "answer": str(len(w))} for w in words])
    rubric = vf.Rubric(funcs=[counted, digits], weights=[1.0, 0.2])
    return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
