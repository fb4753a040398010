"""Runs the loops of an unmodified tinker-cookbook 0.6.1 against a server; prints one line per loop, fails at the first.

    TINKER_BASE_URL=http://… TINKER_API_KEY=tml-… python cookbook.py MODEL [LOOP …]

The environment rewards letters below `n`. Prompts are bytes, so that no tokenizer is downloaded. The package needs torch;
where the package index lacks the newest `tml-renderers`, install it with `--no-deps` and its other dependencies by name.
"""

import asyncio
import functools
import json
import logging
import pathlib
import random
import sys
import tempfile

import chz
import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.supervised import train as sl
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

MODEL = sys.argv[1]
BATCHES = 4


class Bytes:
    bos_token_id = eos_token_id = None

    def encode(self, text, add_special_tokens=False, **_):
        return list(text.encode())

    def decode(self, tokens, **_):
        return bytes(t for t in tokens if t < 256).decode(errors="replace")


class Letters(Env):
    def __init__(self, prompt):
        self.prompt = prompt

    async def initial_observation(self):
        return tinker.ModelInput.from_ints(list(self.prompt)), []

    async def step(self, action, *, extra=None):
        reward = sum(token < ord("n") for token in action) / len(action)
        return StepResult(
            reward=reward, episode_done=True, next_observation=tinker.ModelInput.from_ints([]), next_stop_condition=[]
        )


class Group(EnvGroupBuilder):
    def __init__(self, prompt):
        self.prompt = prompt

    async def make_envs(self):
        return [Letters(self.prompt) for _ in range(4)]

    def logging_tags(self):
        return ["letters"]


class Prompts(RLDataset):
    def get_batch(self, index):
        chance = random.Random(index)
        return [Group(bytes(chance.choices(b"abcxyz", k=12))) for _ in range(4)]

    def __len__(self):
        return BATCHES


@chz.chz
class PromptsBuilder(RLDatasetBuilder):
    async def __call__(self):
        return Prompts(), None


class Texts(SupervisedDataset):
    def get_batch(self, index):
        def datum(text):
            inputs = {
                "target_tokens": tinker.TensorData(data=list(text[1:]), dtype="int64", shape=[len(text) - 1]),
                "weights": tinker.TensorData(data=[1.0] * (len(text) - 1), dtype="float32", shape=[len(text) - 1]),
            }
            return tinker.Datum(model_input=tinker.ModelInput.from_ints(list(text[:-1])), loss_fn_inputs=inputs)

        return [datum(b"good morning"), datum(b"hello world")]

    def __len__(self):
        return BATCHES

    def set_epoch(self, seed=0):
        pass


@chz.chz
class TextsBuilder(SupervisedDatasetBuilder):
    def __call__(self):
        return Texts(), None


def metrics(folder):
    rows = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "optim/lr" in row or "train_mean_nll" in row]


def run_rl(**options):
    with tempfile.TemporaryDirectory() as folder:
        config = rl.Config(
            learning_rate=1e-3,
            dataset_builder=PromptsBuilder(),
            model_name=MODEL,
            recipe_name="letters",
            max_tokens=8,
            log_path=folder,
            lora_rank=4,
            eval_every=0,
            save_every=2,
            num_groups_to_log=0,
            **options,
        )
        asyncio.run(rl.main(config))
        return len(metrics(folder))


def run_sl():
    with tempfile.TemporaryDirectory() as folder:
        config = sl.Config(
            log_path=folder,
            model_name=MODEL,
            recipe_name="texts",
            dataset_builder=TextsBuilder(),
            learning_rate=1e-2,
            lora_rank=4,
            eval_every=0,
            save_every=2,
        )
        asyncio.run(sl.main(config))
        rows = metrics(folder)
        losses = [row["train_mean_nll"] for row in rows]
        assert losses[-1] < losses[0], losses
        return len(rows)


def asynchronous(loss):
    return run_rl(async_config=rl.AsyncConfig(max_steps_off_policy=2, groups_per_batch=4, loss_fn=loss))


def in_flight():
    """The loop saves snapshots in this release; its calls ask for in-flight weights here."""
    saves = {}
    for name in ("save_weights_and_get_sampling_client", "save_weights_and_get_sampling_client_async"):
        saves[name] = getattr(tinker.TrainingClient, name)
        changed = functools.partialmethod(saves[name], kind="inflight")
        setattr(tinker.TrainingClient, name, changed)
    try:
        return asynchronous("ppo")
    finally:
        for name, save in saves.items():
            setattr(tinker.TrainingClient, name, save)


def refused():
    """The default loss of the asynchronous loop is computed by Tinker's hosted service alone."""
    try:
        asynchronous("stable_reinforce")
    except Exception as error:
        assert "stable_reinforce" in str(error) and "hosted service" in str(error), error
        return 0
    raise SystemExit("FAILED stable_reinforce was accepted")


LOOPS = {
    "sl": run_sl,
    "rl": run_rl,
    "stream-minibatch": lambda: run_rl(
        stream_minibatch_config=rl.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
    ),
    "ppo-kl": lambda: run_rl(
        loss_fn="ppo", kl_penalty_coef=0.1, kl_reference_config=rl.KLReferenceConfig(base_model=MODEL)
    ),
    "async": lambda: asynchronous("ppo"),
    "async-inflight": in_flight,
    "async-default-loss": refused,
}

logging.basicConfig(level=logging.WARNING)
tokenizer_utils.register_tokenizer(MODEL, Bytes)
for name in sys.argv[2:] or LOOPS:
    steps = LOOPS[name]()
    assert steps == BATCHES or name == "async-default-loss", (name, steps)
    print(f"ok {name}, {steps} steps", flush=True)
print("done")
