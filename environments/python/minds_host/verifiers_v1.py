"""Environments of the verifiers library from 0.4 on: a task set, agents, and programs that play.

The library's own environment runs here, as its environment server would run it. Programs are child processes whose calls
it relays to the address that names the rollout. They run on this machine unless the config says otherwise.
"""

import contextlib
import importlib.util
import itertools
import os
import sys
import tempfile

from .plain import PROMPT, messages, no_reward, number, plain, short, shown

TASKS = 1024  # of a task set without an end
TOKEN = "MINDS_WORKER_TOKEN"
NEEDED = ("openai", "mcp", "httpx", "tenacity", "certifi")


class VerifiersV1:
    kind = "verifiers v1"
    borrows = False
    group_rewards = False

    def __init__(self, module, path, args, token, clients, loop):
        from verifiers.v1.configs.env import EnvConfig
        from verifiers.v1.utils.loaders import environment_class, load_environment

        self._clients = clients
        os.environ[TOKEN] = token
        if path is not None:  # servers of tools are processes that import the package, too
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
        _no_installer()
        args = dict(args)
        agent = {"runtime": {"type": "subprocess"}, **args.pop("agent", {})}
        given = {"taskset": {"id": module, **args}, "agent": agent}
        config_class = _config_class(environment_class(module), EnvConfig)
        self._env = load_environment(config_class.model_validate(given))
        taskset = self._env.taskset
        tasks = taskset if taskset.bounded else taskset.take(TASKS)
        self._tasks = list(itertools.islice(iter(tasks), 1 << 20))
        self._resources = contextlib.AsyncExitStack()
        loop.run_until_complete(self._resources.enter_async_context(self._env.serving()))

    @property
    def items(self):
        return len(self._tasks)

    def describe(self):
        task = self._tasks[0]
        return {"class": type(self._env.taskset).__name__, "rewards": [], "columns": sorted(type(task.data).model_fields)}

    def rows(self, start, count):
        return (_shown(task.data) for task in self._tasks[start:start + count])

    async def preview(self):
        return _shown(self._tasks[0].data)["prompt"]

    async def run_rollout(self, job):
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig
        from verifiers.v1.types import SamplingConfig

        names = ("max_tokens", "temperature", "top_p")
        client = EvalClientConfig(base_url=job.url, api_key_var=TOKEN)
        sampling = SamplingConfig(**{name: job.sampling[name] for name in names})
        context = ModelContext(client=client, model=self._clients.base_model, sampling=sampling)
        task = self._tasks[job.item % len(self._tasks)]
        episode = await self._env.run_episode(task, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.ok:
            raise RuntimeError("; ".join(f"{e.type}: {e.message}" for e in errors) or "the episode is not valid")
        trained = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
        if len(trained) != 1:
            raise NotImplementedError(f"a rollout with {len(trained)} agents to train has no single reward")
        trace = trained[0]
        metrics = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics.update(trace.metrics)
        reward, errors = number(trace.reward), []
        if reward is None:
            errors = [no_reward(f"the reward is {short(trace.reward)}; it must be a finite number")]
        return {
            "reward": reward or 0.0,
            "coerced": len(errors),
            "errors": errors,
            "metrics": {name: float(value) for name, value in metrics.items() if number(value) is not None},
            # The library keeps no ids of answers; with as many of them as were given, all of them count.
            "answers": sum(call.node is not None for one in episode.traces for call in one.calls),
        }

    async def close(self):
        await self._resources.aclose()


def _config_class(environment, fallback):
    """The config that an environment class is bound to."""
    for base in getattr(environment, "__orig_bases__", ()):
        for argument in getattr(base, "__args__", ()):
            if isinstance(argument, type) and issubclass(argument, fallback):
                return argument
    return fallback


def _shown(data):
    row = plain(data.model_dump(mode="json"))
    prompt = row.get("prompt")
    said = messages(prompt) if prompt else []
    if row.get("system_prompt"):
        said.insert(0, {"role": "system", "content": row["system_prompt"]})
    return {**shown(row), "prompt": shown(said, PROMPT), "answer": shown(row.get("answer")), "info": {}}


def _no_installer():
    """Programs are run by an installer that wants the network; where all that they need is installed here, it is told so.

    The library looks for an installer whose help names `--script`, in the user's own folder first, and installs one there
    if there is none. It must do neither.
    """
    if not all(importlib.util.find_spec(name) for name in NEEDED):
        return
    from verifiers.v1.runtimes import base

    if hasattr(base, "_ENSURE_UV"):
        base._ENSURE_UV = "true"  # a command of the shell
    # Beside the host's own files, which go with the run.
    folder = tempfile.mkdtemp(prefix="uv-", dir=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.path.join(folder, "uv")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\ncase "$*" in *--help*) echo --script ;; *"python find"*) echo "{sys.executable}" ;; esac\n')
    os.chmod(path, 0o700)
    os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")
