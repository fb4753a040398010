"""Environments of the plain contract: `initial_observation` and `step`, or a data set, with rewards from `step`, from a
rubric, or from both.

Every rollout has an environment object of its own. The members of a group see the same task: the random generators
that the object holds, and Python's own, are set by the item before its first observation, which is made once and
copied.
"""

import asyncio
import copy
import inspect
import random
import sys

from . import sdk
from .plain import field, loads, messages, number, plain, settled

ENDLESS = 1 << 20  # items of an environment that makes its tasks by chance


class Classic:
    kind = "classic"
    group_rewards = False

    def __init__(self, envs, clients, seed, borrows):
        if not envs:
            raise ValueError("`build` made no environment")
        self._clients, self._seed, self.borrows = clients, seed, borrows
        self._tasks = {}
        self._envs, first = envs, envs[0]
        self._rows = _rows(first) if len(envs) == 1 else None
        observes = callable(getattr(first, "initial_observation", None))
        steps = callable(getattr(first, "step", None))
        self._observes = observes and (steps or self._rows is None)
        self._rubric = _rubric(first)
        if not self._observes and self._rows is None:
            raise TypeError(
                f"{type(first).__name__} has neither `initial_observation` nor a `dataset` with `prompt` or `question`"
            )
        if not steps and not self._rubric:
            raise TypeError(f"{type(first).__name__} has neither `step` nor a `rubric`: nothing says what an answer earns")
        if self._observes:
            self._rows = None

    @property
    def items(self):
        if self._rows is not None:
            return len(self._rows)
        return len(self._envs) if len(self._envs) > 1 else ENDLESS

    def describe(self):
        return {
            "class": type(self._envs[0]).__name__,
            "rewards": [name for name, _, _ in self._rubric],
            "columns": sorted(self._rows[0]) if self._rows else [],
        }

    def rows(self, start, count):
        if self._rows is None:
            return []
        return [_shown(row) for row in self._rows[start:start + count]]

    async def preview(self):
        if self._rows is not None:
            return messages(_prompt(self._rows[0]))
        _, observation = await self._task(0)
        return _said(observation, self._clients.tokenizer)

    async def _task(self, item):
        """An environment that stands before its first answer, and what it shows."""
        env = _copied(self._envs[item % len(self._envs)])
        if not self._observes:
            return env, None
        _set_chance(env, f"{self._seed}/{item}")
        return env, await settled(env.initial_observation())

    async def play(self, job):
        key = job.group
        if key not in self._tasks:
            while len(self._tasks) > 256:
                self._tasks.pop(next(iter(self._tasks)))
            self._tasks[key] = asyncio.ensure_future(self._task(job.item))
        task = self._tasks[key]
        # A member that is given up does not take the task from the others.
        env, observation = task.result() if task.done() else await asyncio.shield(task)
        env = _copied(env)
        row = job.row or {}
        if self._observes:
            return await self._talk(job, env, observation, row)
        return await self._talk(job, env, messages(_prompt(row)), row)

    def forget(self, group):
        self._tasks.pop(group, None)

    async def _talk(self, job, env, observation, row):
        reward, coerced, metrics = 0.0, 0, {}
        said, completion, responses = [], [], []
        steps = callable(getattr(env, "step", None))
        observation, stop = _split(observation)
        opening = None
        while True:
            if sdk.is_model_input(observation):
                turn = await job.turn(tokens=sdk.ints(observation), stop=stop)
            else:
                said.extend(messages(observation))
                opening = opening if opening is not None else list(said)
                turn = await job.turn(messages=said, stop=stop)
            responses.append(turn["id"])
            answer = {"role": "assistant", "content": turn["text"]}
            said.append(answer)
            completion = said[len(opening):] if opening is not None else [answer]
            if not steps:
                break
            action = turn["tokens"] if sdk.is_model_input(observation) else turn["text"]
            result = await settled(env.step(action))
            value = number(field(result, "reward"))
            coerced += value is None
            reward += value or 0.0
            for name, found in (field(result, "metrics") or {}).items():
                if number(found) is not None:
                    metrics[str(name)] = number(found)
            following = field(result, "next_observation", field(result, "observation"))
            done = field(result, "episode_done", field(result, "done", True))
            if done or following is None:
                break
            observation, stop = _split(following, field(result, "next_stop_condition"))
        for name, function, weight in _rubric(env):
            value = await _judge(function, opening or [], completion, env, row)
            value, is_number = number(value), number(value) is not None
            coerced += not is_number
            metrics[name] = value if is_number else 0.0
            reward += weight * metrics[name]
        return {"reward": reward, "coerced": coerced, "metrics": metrics, "responses": responses}


def _copied(env):
    """An object of its own, attribute by attribute: what cannot be copied is shared, and so is data."""
    fresh = copy.copy(env)
    memo = {id(env): fresh}
    for name, value in list(getattr(env, "__dict__", {}).items()):
        if name in ("dataset", "eval_dataset"):
            continue
        try:
            setattr(fresh, name, copy.deepcopy(value, memo))
        except Exception:  # locks, connections, whatever user code holds
            continue
    return fresh


async def _judge(function, prompt, completion, env, row):
    """Calls a reward by the names of its parameters where all are known, else by position."""
    state = getattr(env, "state", None)
    state = state if state is not None else {}
    info = loads(row.get("info")) or {}
    known = {**row, "prompt": prompt, "completion": completion, "answer": row.get("answer", ""), "state": state, "info": info}
    known.setdefault("task", row.get("task", "default"))
    known.setdefault("parser", getattr(env, "parser", None))
    parameters = inspect.signature(function).parameters.values()
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if all(p.name in known or p.default is not p.empty for p in by_name) and not any(
        p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters
    ):
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = known if takes_all else [p.name for p in by_name if p.name in known]
        return await settled(function(**{name: known[name] for name in names}))
    given = (prompt, completion, known["answer"], state, info)
    places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        places = len(given)
    return await settled(function(*given[:places]))


def _rows(env):
    dataset = getattr(env, "dataset", None)
    if dataset is None:
        return None
    rows = [dict(row) for row in dataset]
    if not rows or not (set(rows[0]) & {"prompt", "question"}):
        return None
    return rows


def _prompt(row):
    return row["prompt"] if row.get("prompt") is not None else row["question"]


def _shown(row):
    found = plain(row)
    found["prompt"] = messages(_prompt(row))
    return found


def _rubric(env):
    """Name, function and weight of every reward, also of rubrics within rubrics; weight 0 is left out."""
    found = []

    def collect(rubric):
        for part in field(rubric, "rubrics") or []:
            collect(part)
        functions = list(field(rubric, "funcs") or [])
        weights = list(field(rubric, "weights") or [])
        weights += [1.0] * (len(functions) - len(weights))
        for function, weight in zip(functions, weights):
            if weight:
                found.append((getattr(function, "__name__", type(function).__name__), function, float(weight)))

    rubric = getattr(env, "rubric", None)
    if rubric is not None:
        collect(rubric)
    return found


def _split(observation, stop=None):
    """Tokens come with their stop in a pair; everything else is what it is."""
    if isinstance(observation, tuple) and len(observation) == 2 and sdk.is_model_input(observation[0]):
        return observation
    return observation, stop


def _said(observation, tokenizer):
    observation, _ = _split(observation)
    if sdk.is_model_input(observation):
        return messages(tokenizer.decode(sdk.ints(observation)))
    return messages(observation)


def _set_chance(env, seed):
    """Equal items make equal choices, whoever asks when."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    whole = random.Random(seed).getrandbits(32)
    if numpy is not None:
        numpy.random.seed(whole)
    for value in list(getattr(env, "__dict__", {}).values()):
        if isinstance(value, random.Random):
            value.seed(seed)
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            value.seed(whole)
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            fresh = type(value.bit_generator)(whole)
            value.bit_generator.state = fresh.state
