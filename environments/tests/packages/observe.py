"""The first interface: what the model is shown, and what its answer earns."""

import random


class Sum:
    def __init__(self, largest, mapping):
        self.rng = random.Random()
        self.largest, self.mapping = largest, mapping
        self.a = self.b = None

    def initial_observation(self):
        self.a, self.b = self.rng.randint(0, self.largest), self.rng.randint(0, self.largest)
        return f"What is {self.a} + {self.b}?"

    async def step(self, action_text):
        reward = 1.0 if action_text.strip() == str(self.a + self.b) else 0.0
        if self.mapping:
            return {"reward": reward, "metrics": {"length": len(action_text)}}

        class Result:
            pass

        result = Result()
        result.reward = reward
        return result


def load_environment(largest=9, mapping=False):
    return Sum(largest, mapping)
