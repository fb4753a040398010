"""tinker-cookbook 0.6.1, unmodified, on the environment that minds.toml names: share of letters in the answer.

    TINKER_BASE_URL=http://… TINKER_API_KEY=tml-… python cookbook_client.py '{"off_policy": 2, …}'

Everything that is not set here is the package's default. Prompts and tokenizer are those of the other client.
"""

import asyncio
import json
import os
import pathlib
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import chz
import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from transformers import AutoTokenizer

SETTINGS = json.loads(sys.argv[1])
MODEL = SETTINGS["base_model"]
TOPICS = ["rain", "bread", "stone", "light", "wool", "salt", "clay", "smoke"]
gguf = pathlib.Path(SETTINGS["gguf"])
TOKENIZER = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
tokenizer_utils.register_tokenizer(MODEL, lambda: TOKENIZER)
PROMPTS = [
    TOKENIZER.encode(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\nWrite about {topic} in letters only.<|im_end|>\n<|im_start|>assistant\n"
    )
    for topic in TOPICS
]
STOP = TOKENIZER.encode("<|im_end|>")


class Letters(Env):
    def __init__(self, item):
        self.prompt = PROMPTS[item % len(PROMPTS)]

    async def initial_observation(self):
        return tinker.ModelInput.from_ints(self.prompt), STOP

    async def step(self, action, *, extra=None):
        text = TOKENIZER.decode(action, skip_special_tokens=True)
        letters = sum(c.isascii() and c.isalpha() for c in text)
        return StepResult(
            reward=letters / max(len(text), 1),
            episode_done=True,
            next_observation=tinker.ModelInput.from_ints([]),
            next_stop_condition=[],
        )


class Group(EnvGroupBuilder):
    def __init__(self, item):
        self.item = item

    async def make_envs(self):
        return [Letters(self.item) for _ in range(SETTINGS["group_size"])]


class Dataset(RLDataset):
    def get_batch(self, index):
        return [Group(index * SETTINGS["groups"] + n) for n in range(SETTINGS["groups"])]

    def __len__(self):
        return 100_000


@chz.chz
class Builder(RLDatasetBuilder):
    async def __call__(self):
        return Dataset(), None


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(
        train.main(
            train.Config(
                learning_rate=1e-5,
                dataset_builder=Builder(),
                model_name=MODEL,
                recipe_name="side_by_side",
                max_tokens=SETTINGS["tokens"],
                log_path=folder + "/log",
                eval_every=0,
                save_every=0,
                max_steps=SETTINGS["steps"],
                async_config=train.AsyncConfig(
                    max_steps_off_policy=SETTINGS["off_policy"],
                    groups_per_batch=SETTINGS["groups"],
                    loss_fn="importance_sampling",
                ),
            )
        )
    )
