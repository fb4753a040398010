"""The second interface: rows and a rubric. The functions ask for what they need in every way that is known."""


class Rubric:
    def __init__(self, owner):
        self.funcs = [exact, owner.by_position, by_everything, never_counted]
        self.weights = [1.0, 0.5, 0.25, 0.0]


def exact(completion, answer):
    return completion[-1]["content"] == answer


def by_everything(**kwargs):
    assert {"prompt", "completion", "answer", "state", "info", "topic"} <= set(kwargs)
    return kwargs["info"]["bonus"]


def never_counted(completion):
    raise RuntimeError("a function of weight 0 is not called")


class Rows:
    def __init__(self):
        self.dataset = [
            {"question": "Capital of France?", "answer": "Paris", "topic": "places", "info": '{"bonus": 2}'},
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "answer": "4",
             "topic": "sums", "info": {"bonus": -1}},
        ]
        self.calls = 0
        self.rubric = Rubric(self)

    async def by_position(self, prompt_messages, completion_messages, target, *rest):
        self.calls += 1
        assert self.calls == 1, "every rollout has an object of its own"
        return len(completion_messages)


class Builder:
    def build(self, sampling_client):
        return [Rows()]


async def load_environment(built=False):
    return Builder() if built else Rows()
