"""Several steps, a reward in each, and a state that must not leak from one rollout to another."""

import random

from tinker_cookbook.rl.types import Env, StepResult


class Countdown(Env):
    def __init__(self):
        self.left = None
        self.history = []

    async def initial_observation(self):
        self.left = random.randint(2, 4)
        return f"Say go {self.left} times."

    async def step(self, action):
        self.history.append(action)
        self.left -= 1
        done = self.left == 0
        following = f"{self.left} more."
        return StepResult(
            reward=1.0 if action == "go" else 0.0,
            episode_done=done,
            next_observation=following,
            metrics={"said": float(len(self.history))},
        )


def load_environment():
    return Countdown()
