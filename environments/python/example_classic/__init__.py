"""A complete classic environment: spell a short word backwards.

It needs nothing but Python. `minds-actors envs show environments/python/example_classic` shows it,
`minds-actors run configs/python_classic.toml` trains it.
"""

import random

WORDS = ["rain", "stone", "lamp", "river", "cloud", "bread", "north", "glass", "tiger", "smile", "wheel", "paper"]


class SpellBackwards:
    """One object plays one rollout; the trainer copies it. Chance held in `self.rng` is set by the item."""

    def __init__(self, letters):
        self.rng = random.Random(0)
        self.words = [word[:letters] for word in WORDS]
        self.word = None

    def initial_observation(self):
        """What the model is shown: text, or a list of chat messages."""
        self.word = self.rng.choice(self.words)
        return f"Spell backwards, letters only: {self.word}"

    def step(self, action_text):
        """What the answer earns. `metrics` are averaged and logged beside the reward."""
        answer, wanted = action_text.strip().lower(), self.word[::-1]
        right = sum(a == b for a, b in zip(answer, wanted))
        extra = max(0, len(answer) - len(wanted))
        letters = sum(c.isascii() and c.isalpha() for c in answer) / max(1, len(answer))
        reward = 0.5 * right / len(wanted) + 0.5 * letters - 0.05 * extra
        return {"reward": max(0.0, reward), "metrics": {"exact": float(answer == wanted), "letters": letters}}


def load_environment(letters=4):
    """The entry point. Its arguments are the `[env.args]` of the config."""
    return SpellBackwards(letters)
