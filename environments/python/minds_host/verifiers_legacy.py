"""Environments of the verifiers library before 0.4, by what their functions ask for rather than by release.

The library plays the rollout itself and asks the policy over HTTP, at an address that names the rollout. An error that
the library notes in the state of a rollout is an error here: it is never a reward of 0.
"""

import contextlib
import copy
import inspect
import logging
import sys

from .plain import PROMPT, describe_error, field, loads, messages, no_reward, number, own, settled, short, shown
from .wire import ROLLOUT


class NullSemaphore:
    """Stands for a semaphore where a release of the library asks for one: concurrency is bounded outside."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return False


class LoggedErrors(logging.Handler):
    """Collects the library's error logs during scoring: the library counts a reward function that raises as 0."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self._by_rollout = {}

    def emit(self, record):
        rollout = ROLLOUT.get()
        if rollout is not None:
            # The library logs the exception while it handles it.
            error = (record.exc_info or sys.exc_info())[1]
            found = describe_error(error) if error is not None else no_reward(record.getMessage()[:4000])
            self._by_rollout.setdefault(rollout, []).append(found)

    def take(self, rollout):
        """What has been said of a rollout since this was last asked."""
        return self._by_rollout.pop(rollout, [])


class VerifiersLegacy:
    kind = "verifiers"
    borrows = False

    def __init__(self, env, clients, token, version):
        import openai
        import verifiers

        self._env, self._clients, self._version = env, clients, version
        self._chat = getattr(env, "message_type", "chat") == "chat"
        # One client for all rollouts: making one takes tens of milliseconds, another address for it takes none.
        self._openai = openai.AsyncOpenAI(api_key=token, base_url="http://127.0.0.1/", max_retries=0, timeout=None)
        self._wrap = None
        with contextlib.suppress(ImportError):
            from verifiers.clients import OpenAIChatCompletionsClient, OpenAICompletionsClient

            self._wrap = OpenAIChatCompletionsClient if self._chat else OpenAICompletionsClient
        self._rollout = inspect.signature(env.rollout).parameters
        self._logged = LoggedErrors()
        logging.getLogger(verifiers.__name__).addHandler(self._logged)
        self.group_rewards = bool(getattr(env, "requires_group_rollouts", False)) or bool(
            getattr(env.rubric, "has_group_rewards", False)
        )
        self._dataset = self._load_rows()

    def _load_rows(self):
        try:
            dataset = self._env.get_dataset()
        except Exception:
            dataset = None
        if dataset is None:
            dataset = self._env.get_eval_dataset()
        return dataset

    @property
    def items(self):
        return len(self._dataset)

    def describe(self):
        return {
            "class": type(self._env).__name__,
            "rewards": _names(self._env.rubric),
            "columns": list(getattr(self._dataset, "column_names", [])),
        }

    def rows(self, start, count):
        stop = min(start + count, len(self._dataset))
        return (_shown(self._row(index)) for index in range(start, stop))

    async def preview(self):
        return messages(self._row(0)["prompt"])

    def _row(self, index):
        """The package's row with what releases insist on."""
        found = own(self._dataset[index])
        # Releases number rows under either name, and fail without one.
        name = found.get("example_id", found.get("id"))
        found["example_id"] = index if name is None else name
        found["prompt"] = messages(found["prompt"]) if self._chat else found["prompt"]
        found["info"] = loads(found.get("info")) or {}
        task = found.get("task")
        if task is None or isinstance(task, str) and "task" not in self._rollout and self._routes_by_info():
            found.pop("task", None)
        return found

    def _routes_by_info(self):
        """Since 0.1.14 a text in the column `task` is refused."""
        parts = [int(part) for part in self._version.split(".")[:3] if part.isdigit()]
        return parts >= [0, 1, 14]

    def _client(self, url):
        client = self._openai.with_options(base_url=url)
        if self._wrap is not None:
            client = self._wrap(client)
        # Environments reach through the client for logprobs of the policy.
        client.sampling_client, client.tokenizer = self._clients.sampler, self._clients.tokenizer
        client.renderer = self._clients.renderer
        return client

    def _set_clients(self, state):
        """What rewards find in `info`. It is not there while the rollout is played: the library copies its input."""
        info = state.get("info")
        info = info if isinstance(info, dict) else dict(info or {})
        info["tinker_client"], info["tokenizer"] = self._clients.sampler, self._clients.tokenizer
        state["info"] = info
        return info

    def _object(self):
        """The environment; one that keeps a `state` is given an empty one for each rollout, in a shallow copy."""
        if not hasattr(self._env, "state"):
            return self._env
        env = copy.copy(self._env)
        env.state = {}
        return env

    async def run_rollout(self, job):
        """One rollout with its reward."""
        try:
            state = await self._run_rollout(job)
            return self.report(state, await self._errors_of(self._score(state, job), job.rollout, [state]))
        finally:
            self._logged.take(job.rollout)

    async def _errors_of(self, scoring, rollout, states):
        """What goes wrong while rewards are computed: what the library logs and takes for 0, and what it lets through."""
        self._logged.take(rollout)  # what was said before is not about rewards
        try:
            await scoring
        except Exception as error:
            for state in states:
                state["reward"] = 0.0
            return [*self._logged.take(rollout), describe_error(error)]
        return self._logged.take(rollout)

    async def run_group(self, jobs, run):
        """All rollouts of a group, judged together; `run` plays each and gives its state or None.

        A job comes back with a function that makes its report.
        """
        states = [(job, state) for job, state in zip(jobs, await run(self._run_rollout)) if state is not None]
        whole = [state for _, state in states if not state.get("error")]
        for state in whole:
            self._set_clients(state)
        errors = []
        if whole:
            # Rewards that ask the policy ask as one of the members: all have the same version.
            speaker = next(job.rollout for job, state in states if state is whole[0])
            ROLLOUT.set(speaker)
            errors = await self._errors_of(self._call(self._env.rubric.score_group, states=whole), speaker, whole)
        for job, _ in states:
            self._logged.take(job.rollout)
        # Whose answer a reward failed at is not told: it concerns all that it compares.
        return [(job, lambda state=state: self.report(state, errors)) for job, state in states]

    async def _run_rollout(self, job):
        row, env = self._row(job.item), self._object()
        client, model = self._client(job.url), self._clients.base_model
        if "input" in self._rollout:
            known = ("prompt", "example_id", "answer", "info", "task")
            extra = [name for name in row if name not in known]
            given = {name: row[name] for name in (*known, *extra) if name in row}
            if "task" not in row and not self._routes_by_info():
                given["task"] = "default"
            state = await env.rollout(given, client, model, dict(job.sampling))
            state = state[0] if isinstance(state, tuple) else state
        else:
            given = {
                "client": client,
                "model": model,
                "prompt": row["prompt"],
                "completion": None,
                "answer": row.get("answer", ""),
                "state": {},
                "task": row.get("task", "default"),
                "info": row["info"],
                "example_id": row["example_id"],
                "sampling_args": dict(job.sampling),
            }
            found = await env.rollout(**{k: v for k, v in given.items() if k in self._rollout})
            completion, state = found if isinstance(found, tuple) else (found.get("completion"), found)
            state["completion"] = completion
        return state

    async def _score(self, state, job):
        if state.get("error"):
            return
        rubric, info = self._env.rubric, self._set_clients(state)
        parameters = inspect.signature(rubric.score_rollout).parameters
        if "prompt" not in parameters:
            await self._call(rubric.score_rollout, state=state)
            return
        row = self._row(job.item)
        given = {
            "prompt": row["prompt"],
            "completion": state["completion"],
            "answer": row.get("answer", ""),
            "state": state,
            "task": row.get("task", "default"),
            "info": {**row["info"], **info},
            "example_id": row["example_id"],
        }
        score = await rubric.score_rollout(**{k: v for k, v in given.items() if k in parameters})
        state["reward"], state["metrics"] = field(score, "reward"), field(score, "metrics")

    async def _call(self, function, **given):
        parameters = inspect.signature(function).parameters
        if "score_sem" in parameters:
            given["score_sem"] = NullSemaphore()
        await settled(function(**given))

    def report(self, state, errors):
        error = state.get("error")
        if error is not None:
            raise error if isinstance(error, BaseException) else RuntimeError(str(error))
        reward = number(state.get("reward"))
        if reward is None:
            errors = [*errors, no_reward(f"the reward is {short(state.get('reward'))}; it must be a finite number")]
        metrics = {str(k): number(v) for k, v in (state.get("metrics") or {}).items()}
        return {
            "reward": reward or 0.0,
            "coerced": len(errors),
            "metrics": {name: value for name, value in metrics.items() if value is not None},
            "responses": _responses(state),
            "errors": errors[:3],
        }

    async def close(self):
        for name in ("_teardown", "teardown"):
            function = getattr(self._env, name, None)
            if callable(function):
                await settled(function())
                return


def _shown(row):
    return {**shown(row), "prompt": shown(row["prompt"], PROMPT)}


def _responses(state):
    """Ids of the answers that the final trajectory is made of, or None where a release does not keep them."""
    steps = state.get("trajectory")
    found = [field(field(step, "response"), "id") for step in steps] if steps is not None else []
    if steps is None:
        found = [field(response, "id") for response in state.get("responses") or []]
    return found if found and all(found) else None


def _names(rubric):
    found = []
    for part in [rubric, *(field(rubric, "rubrics") or [])]:
        found += [getattr(function, "__name__", str(function)) for function in field(part, "funcs") or []]
    return found
