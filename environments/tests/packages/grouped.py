"""verifiers with a reward that compares the members of a group, one that raises, and one that sees plain values."""

import verifiers as vf
from datasets import Dataset


def shortest(completions, **_) -> list[float]:
    lengths = [len(completion[-1]["content"].strip()) for completion in completions]
    return [float(length == min(lengths)) for length in lengths]


def broken(completion, **_):
    raise RuntimeError("no such reward")


def load_environment(group=True):
    dataset = Dataset.from_list([{"question": "Say little.", "answer": ""}] * 3)
    funcs = [shortest, broken] if group else [broken, lambda completion, **_: 0.5]
    return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=funcs, weights=[1.0] * len(funcs)))
