"""Environments of the plain contract: `initial_observation` and `step`, or a data set with `step` or a rubric. Where there
is a `step`, it alone says what an answer earns.

Every rollout is lent an object of its own (`objects`), whose generators are set by the item (`randomness`), so the members of a
group make the same observation. Rows are those that the package made: they never leave the process.
"""

import asyncio
import contextlib
import copy
import inspect

from . import randomness, sdk
from .objects import ObjectPool
from .plain import PROMPT, describe_error, field, loads, messages, no_reward, number, own, settled, short, shown

ENDLESS = 1 << 20  # items of an environment that makes its tasks by chance
REMEMBERED = 256  # groups whose observation is remembered
UNSETTLED = (
    "its observation of an item is not the same twice, so it draws from what an item cannot set (random.SystemRandom, secrets,"
    " uuid4, os.urandom, the clock, a service): the members of a group play copies of one object, in which functions that are"
    " closed over the object still see the first, and a resumed run sees other tasks. Draw from random, numpy or torch instead"
)


class Classic:
    kind = "classic"
    group_rewards = False

    def __init__(self, envs, maker, clients, seed):
        if not envs:
            raise ValueError("`build` made no environment")
        self._maker, self._clients, self._seed, self.borrows = maker, clients, seed, maker.borrows
        self._class, first = type(envs[0]).__name__, envs[0]
        self._steps = callable(getattr(first, "step", None))
        self._rows = _rows(first) if len(envs) == 1 else None
        self._observes = callable(getattr(first, "initial_observation", None)) and (self._steps or self._rows is None)
        self._rewards = [] if self._steps else [name for name, _, _ in _rubric(first)]
        if not self._observes and self._rows is None:
            raise TypeError(
                f"{self._class} has neither `initial_observation` nor a `dataset` with `prompt` or `question`"
            )
        if not self._steps and not self._rewards:
            raise TypeError(f"{self._class} has neither `step` nor a `rubric`: it has no source of rewards")
        if self._observes:
            self._rows = None
        self._count = len(envs)
        self._pool = ObjectPool(maker, envs)
        # Whether an item says what is observed, as far as that could be tried, and what the groups of now observed.
        self._is_settled, self._observed, self._shared = None, {}, {}

    @property
    def items(self):
        if self._rows is not None:
            return len(self._rows)
        return self._count if self._count > 1 else ENDLESS

    def describe(self):
        notes = [UNSETTLED] if self._is_settled is False else []
        columns = sorted(map(str, self._rows[0])) if self._rows is not None else []
        return {"class": self._class, "rewards": self._rewards, "columns": columns, "notes": notes}

    def rows(self, start, count):
        if self._rows is None:
            return []
        return (_shown(dict(self._rows[index])) for index in range(start, min(start + count, len(self._rows))))

    def _row(self, item):
        return own(self._rows[item % len(self._rows)])

    async def preview(self):
        if self._rows is not None:
            return messages(_prompt(self._row(0)))
        first, second = await self.observe(0), await self.observe(0)
        self._is_settled = first == second
        return first

    async def observe(self, item):
        """The messages with which a rollout of the item begins; tokens as their text."""
        seeded = self._seeded_randomness(item)
        async with self._acquire(item, seeded) as env:
            observation = _comparable(await seeded.call(env.initial_observation))
        return observation if isinstance(observation, list) else messages(self._clients.tokenizer.decode(observation[0]))

    def _seeded_randomness(self, item):
        return randomness.SeededRandomness(f"{self._seed}/{item}", self._maker.shared)

    @contextlib.asynccontextmanager
    async def _acquire(self, item, seeded):
        async with self._pool.acquire() as loaded:
            seeded.seed_held(loaded.record.generators)
            yield loaded.envs[item % self._count]

    async def run_rollout(self, job):
        seeded = self._seeded_randomness(job.item)
        async with contextlib.AsyncExitStack() as lent:
            if self._observes and not self._is_settled:
                env, observation = await self._copy(job)
            elif self._observes:
                env = await lent.enter_async_context(self._acquire(job.item, seeded))
                observation = await seeded.call(env.initial_observation)
                self._compare(job.group, _comparable(observation))
            else:
                row = self._row(job.item)
                conversation = Conversation(job, messages(_prompt(row)))
                # The object is not needed before there is an answer.
                action = await conversation.turn()
                env = await lent.enter_async_context(self._acquire(job.item, seeded))
                return await self._finish(conversation, seeded, env, row, action)
            conversation = Conversation(job, observation)
            return await self._finish(conversation, seeded, env, {}, await conversation.turn())

    async def _finish(self, conversation, seeded, env, row, action):
        """Plays on to the end and says what it earned."""
        while self._steps and await conversation.take_step(seeded.call(env.step, action)):
            action = await conversation.turn()
        if not self._steps:
            for name, function, weight in _rubric(env):
                value = seeded.call(_call_reward, function, conversation.opening or [], conversation.completion, env, row)
                await conversation.add_reward(value, weight, name)
        return conversation.report()

    def _compare(self, group, observation):
        """The members of a group must see one task."""
        while len(self._observed) > REMEMBERED:
            self._observed.pop(next(iter(self._observed)))
        if self._observed.setdefault(group, observation) != observation:
            self._is_settled = False
            raise ValueError(f"the members of a group see different prompts: {UNSETTLED}")

    async def _copy(self, job):
        """A copy of the object that made the observation of the group, and that observation."""
        key = job.group
        if key not in self._shared:
            while len(self._shared) > REMEMBERED:
                self._shared.pop(next(iter(self._shared)))
            self._shared[key] = asyncio.ensure_future(self._observe(job.item))
        observed = self._shared[key]
        # A member that is given up does not take the task from the others.
        env, observation = observed.result() if observed.done() else await asyncio.shield(observed)
        return _copied(env), observation

    async def _observe(self, item):
        seeded = self._seeded_randomness(item)
        async with self._acquire(item, seeded) as env:
            observation = await seeded.call(env.initial_observation)
            return _copied(env), observation

    def forget(self, group):
        self._observed.pop(group, None)
        self._shared.pop(group, None)


class Conversation:
    """What is said in a rollout, and what that earns: code that raises and values that are not a finite number earn 0 and are reported."""

    def __init__(self, job, observation):
        self._job = job
        self._observation, self._stop = _split(observation)
        self._said, self._responses = [], []
        self._reward, self._errors, self._metrics = 0.0, [], {}
        self.opening, self.completion = None, []

    async def turn(self):
        """Shows the policy the observation; its answer, in the form in which it was asked."""
        speaks_tokens = sdk.is_model_input(self._observation)
        if speaks_tokens:
            turn = await self._job.turn(tokens=sdk.ints(self._observation), stop=self._stop)
        else:
            self._said.extend(messages(self._observation))
            self.opening = self.opening if self.opening is not None else list(self._said)
            turn = await self._job.turn(messages=self._said, stop=self._stop)
        self._responses.append(turn["id"])
        answer = {"role": "assistant", "content": turn["text"]}
        self._said.append(answer)
        self.completion = self._said[len(self.opening):] if self.opening is not None else [answer]
        return turn["tokens"] if speaks_tokens else turn["text"]

    async def take_step(self, stepping):
        """Adds up what a step earned; whether another answer is wanted."""
        try:
            return self._took_step(await stepping)
        except Exception as error:
            self._errors.append(describe_error(error))
            return False

    def _took_step(self, result):
        value = number(field(result, "reward"))
        if value is None:
            self._complain(
                f"`step` returned {short(result)}; it must be a mapping or an object with a finite number as `reward`"
            )
        self._reward += value or 0.0
        for name, found in (field(result, "metrics") or {}).items():
            if number(found) is not None:
                self._metrics[str(name)] = number(found)
        following = field(result, "next_observation", field(result, "observation"))
        if field(result, "episode_done", field(result, "done", True)) or following is None:
            return False
        self._observation, self._stop = _split(following, field(result, "next_stop_condition"))
        return True

    async def add_reward(self, calling, weight, name):
        """Adds what a function of a rubric returned."""
        self._metrics[name] = 0.0
        try:
            value = await calling
        except Exception as error:
            self._errors.append(describe_error(error))
            return
        found = number(value)
        if found is None:
            self._complain(f"the reward function `{name}` returned {short(value)}; it must be a finite number")
        self._metrics[name] = found or 0.0
        self._reward += weight * self._metrics[name]

    def _complain(self, message):
        self._errors.append(no_reward(message))

    def report(self):
        reward = number(self._reward)
        if reward is None:
            self._complain(f"the rewards add up to {self._reward}; it must be a finite number of 32 bits")
        return {
            "reward": reward or 0.0,
            "coerced": len(self._errors),
            "metrics": self._metrics,
            "responses": self._responses,
            "errors": self._errors[:3],
        }


def _copied(env):
    """A copy, attribute by attribute: what cannot be copied is shared, and so is data."""
    fresh = copy.copy(env)
    memo = {id(env): fresh}
    for name, value in list(randomness.attributes(env).items()):
        if name in randomness.DATA:
            continue
        try:
            setattr(fresh, name, copy.deepcopy(value, memo))
        except Exception:  # locks, connections, whatever user code holds
            continue
    return fresh


async def _call_reward(function, prompt, completion, env, row):
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
    """The rows as the package holds them; a data set that can only be read in order is read once."""
    dataset = getattr(env, "dataset", None)
    if dataset is None:
        return None
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or hasattr(dataset, "keys"):
        dataset = list(dataset)
    if not len(dataset) or not (set(dict(dataset[0])) & {"prompt", "question"}):
        return None
    return dataset


def _prompt(row):
    return row["prompt"] if row.get("prompt") is not None else row["question"]


def _shown(row):
    return {**shown(row), "prompt": shown(messages(_prompt(row)), PROMPT)}


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


def _comparable(observation):
    """Messages, or tokens in a tuple."""
    observation, _ = _split(observation)
    if sdk.is_model_input(observation):
        return (sdk.ints(observation),)
    return messages(observation)
