"""verifiers with what packages get wrong: a prompt and a task that are texts, and rewards that are no numbers."""

import verifiers as vf
from datasets import Dataset


def judged(completion, **_):
    word = completion[-1]["content"].strip()
    if word == "raise":
        raise RuntimeError("no such reward")
    return {"nan": float("nan"), "mapping": {"score": 1.0}, "none": None}.get(word, 1.0)


def load_environment():
    dataset = Dataset.from_list([{"prompt": "Say a word.", "answer": "", "task": "default"}] * 2)
    return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[judged]))
