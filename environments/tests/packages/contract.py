"""What the plain contract promises beyond its first sentence, one promise a case. The right reward is 1 unless it says so."""

import collections
import datetime
import decimal
import functools
import itertools
import random
import resource
import secrets

SHARED = random.Random()
VALUES = [
    10**25, (1, 2), {1, 2}, decimal.Decimal("0.1"), {1: "a", (2, 3): {"b"}}, float("inf"), b"\x00\xff",
    datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5), None, True, -0.0, frozenset("ab"), 1 + 2j,
]


class Rubric:
    def __init__(self, *funcs):
        self.funcs, self.weights = list(funcs), [1.0] * len(funcs)


class Paid:
    """Has a `step` and a rubric: `step` alone pays."""

    def __init__(self):
        self.rubric = Rubric(lambda prompt, completion: 1.0)

    def initial_observation(self):
        return "Say anything."

    def step(self, action):
        return {"reward": 1.0}


class Closed:
    """A rubric whose functions are closed over the object, over a part of it, and over what a method made. They must see
    the object that was shown to the policy, as it was when it was loaded but for what was done since."""

    def __init__(self):
        self.observed, self.log = None, []
        log = self.log
        self.note = functools.partial(self.write, "noted")
        self.seen = lambda: (self.observed, len(log), log is self.log)

        def seen(completion):
            return float(self.seen() == (3, 1, True) and self.check())

        self.rubric = Rubric(seen)

    def write(self, word):
        self.log.append(word)

    def initial_observation(self):
        self.observed = 3 if self.observed is None else -1
        self.note()
        me = self
        self.check = lambda: me is self and me.observed == 3
        return "Say anything."


class Source:
    """Chance below the object, in a slot, behind an import of the module and in the class."""

    __slots__ = ("generators",)
    own = random.Random()

    def __init__(self):
        self.generators = collections.deque([{"deep": random.Random()}])

    def draw(self):
        found = [self.generators[0]["deep"], self.own, SHARED, random.Random(), random]
        return [generator.randrange(10**6) for generator in found]


class Nested:
    """Every number differs from item to item, and is the same whenever an item is played."""

    def __init__(self):
        self.source = Source()
        self.source_of_all = self  # a cycle

    async def initial_observation(self):
        self.numbers = self.source.draw()
        return "Repeat: " + " ".join(map(str, self.numbers))

    def step(self, action):
        return {"reward": float(action == "Repeat: " + " ".join(map(str, self.numbers)))}


class Frozen:
    """Its chance is spent when it is loaded: all items are one prompt."""

    def __init__(self):
        self.number = random.randrange(10**6)

    def initial_observation(self):
        return f"Repeat: {self.number}"

    def step(self, action):
        return {"reward": 1.0}


class Unsettable:
    """Draws from the system; the members of a group see one prompt all the same."""

    def initial_observation(self):
        self.number = secrets.randbelow(10**9)
        return f"Repeat: {self.number}"

    def step(self, action):
        return {"reward": float(action == f"Repeat: {self.number}")}


class Iterating:
    """Holds an iterator, which cannot be set back: every rollout is given an object that was loaded for it."""

    def __init__(self):
        self.words = itertools.cycle(["first", "second"])

    def initial_observation(self):
        self.word = next(self.words)
        return f"Repeat: {self.word}"

    def step(self, action):
        return {"reward": float(action == "Repeat: first")}


def same(answer, info):
    """The package's own row, in the state in which it was made."""
    found = any(type(answer) is type(value) and answer == value for value in VALUES) and info == {"used": False, 7: "seven"}
    info["used"] = True
    return float(found)


class Types:
    dataset = [{"question": f"q{i}", "answer": value, "info": {"used": False, 7: "seven"}} for i, value in enumerate(VALUES)]
    rubric = Rubric(same)


class Heavy:
    """300 rows of a MiB each."""

    def __init__(self):
        self.dataset = [{"question": f"q{i}", "info": {"tests": chr(97 + i % 26) * 2**20}} for i in range(300)]
        self.rubric = Rubric(whole)
        self.rubric.funcs.append(most_held)
        self.rubric.weights.append(1e-9)


def whole(info):
    return float(len(info["tests"]) == 2**20)


def most_held(info):
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


class Drawn:
    """Rows of which no two loads make the same; `seeded` ones do."""

    def __init__(self, seeded):
        draw = random.Random() if seeded else random.SystemRandom()
        order = list({f"word{n}" for n in range(50)})
        self.dataset = [{"question": f"{draw.randrange(10**9)} {word}"} for word in order]
        self.rubric = Rubric(lambda completion: 1.0)


class Rendered:
    """Asks with tokens that the run's renderer made, and has it read the answer."""

    renderer = None

    def __init__(self, client, service, base_model):
        assert client.tokenizer is client.get_tokenizer() and base_model and callable(service.create_lora_training_client)

    def initial_observation(self):
        prompt = self.renderer.build_generation_prompt([{"role": "user", "content": "Say x."}])
        return prompt, self.renderer.get_stop_sequences()

    def step(self, action):
        message, is_complete = self.renderer.parse_response(action)
        return {"reward": float(message["content"] == "x" and is_complete)}


class Builder:
    renderer = None

    def build(self, sampling_client, *, service_client, base_model, training_client):
        assert self.renderer.tokenizer is sampling_client.tokenizer and training_client is None
        return [Rendered(sampling_client, service_client, base_model)]


class Asking:
    """Asks the policy for its first observation."""

    def __init__(self, client):
        self.client = client

    async def initial_observation(self):
        return f"Again: {len((await self.client.sample_async([1, 2, 3])).sequences[0].tokens)}"

    def step(self, action):
        return {"reward": 1.0}


class Asker:
    def build(self, sampling_client):
        return Asking(sampling_client)


def raising(completion):
    raise KeyError(completion[-1]["content"])


class Raising:
    """A reward function that raises, one that returns None, and one that returns a number."""

    dataset = [{"question": "q"}]
    rubric = Rubric(raising, lambda completion: None, lambda completion: 1.0)


CASES = {
    "raising": Raising, "asking": Asker,
    "paid": Paid, "closed": Closed, "nested": Nested, "frozen": Frozen, "unsettable": Unsettable, "iterating": Iterating,
    "rendered": Builder, "types": Types, "heavy": Heavy, "drawn": lambda: Drawn(False), "seeded": lambda: Drawn(True),
}


def load_environment(case):
    return CASES[case]()
