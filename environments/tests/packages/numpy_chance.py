"""Chance of numpy, in every form in which an object may hold it, and an array that a rollout changes."""

import numpy as np


class Inner:
    def __init__(self):
        self.generator, self.state, self.bits = np.random.default_rng(), np.random.RandomState(), np.random.PCG64()
        self.seen = np.zeros(3)


class Environment:
    def __init__(self):
        self.inner = Inner()

    def initial_observation(self):
        inner = self.inner
        assert not inner.seen.any(), "the object is as it was loaded"
        inner.seen += 1
        kinds = [inner.generator, np.random.Generator(inner.bits), np.random.default_rng()]
        self.numbers = [kind.integers(10**6) for kind in kinds]
        self.numbers += [inner.state.randint(10**6), np.random.randint(10**6)]
        return "Repeat: " + " ".join(map(str, self.numbers))

    async def step(self, action):
        return {"reward": float(action == "Repeat: " + " ".join(map(str, self.numbers)))}


def load_environment():
    return Environment()
