"""A reward that takes its time, or a conversation of many turns: for measuring what everything around them costs."""

import asyncio


class Timed:
    def __init__(self, seconds, turns):
        self.seconds, self.turns, self.said = seconds, turns, 0

    def initial_observation(self):
        return "Go on."

    async def step(self, action_text):
        self.said += 1
        if self.said < self.turns:
            return {"reward": 0.0, "episode_done": False, "next_observation": "Go on."}
        await asyncio.sleep(self.seconds)
        return {"reward": 1.0}


def load_environment(seconds=0.1, turns=1):
    return Timed(seconds, turns)
