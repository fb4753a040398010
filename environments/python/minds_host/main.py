"""Loads one environment on the main thread, then runs rollouts concurrently on an event loop."""

from . import wire  # the descriptors are taken before anything else can print

INCOMING, OUTGOING = wire.take_descriptors()

import asyncio  # noqa: E402
import importlib  # noqa: E402
import importlib.metadata  # noqa: E402
import importlib.util  # noqa: E402
import hashlib  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

from . import randomness, sdk  # noqa: E402
from .client import Clients  # noqa: E402
from .objects import EnvironmentFactory, disable_exit_hooks  # noqa: E402
from .plain import describe_error  # noqa: E402
from .wire import ROLLOUT  # noqa: E402


PORTION = 16 << 20  # characters of rows in one message


class TaggedOutput(io.TextIOBase):
    """What user code prints, line by line, each with the rollout that printed it."""

    encoding, errors = "utf-8", "replace"

    def __init__(self):
        self._open = {}
        self.buffer = open(2, "wb", buffering=0, closefd=False)

    def writable(self):
        return True

    def fileno(self):
        return 2

    def write(self, text):
        rollout = ROLLOUT.get()
        whole = self._open.pop(rollout, "") + text
        *lines, rest = whole.split("\n")
        if len(rest) > 4096:
            lines, rest = [*lines, rest], ""
        if rest:
            self._open[rollout] = rest
        if lines:
            mark = f"[{rollout}] " if rollout else ""
            data = "".join(f"{mark}{line}\n" for line in lines).encode("utf-8", "replace")
            while data:
                data = data[os.write(2, data):]
        return len(text)


class NoSuchEnvironment(Exception):
    """No module of this name."""


def load(message, clients, token, seed, loop):
    """The environment, in the terms of one of the contracts."""
    module = find(message)
    loader = getattr(module, "load_environment", None)
    if loader is None:
        if getattr(module, "__all__", None) and _has("verifiers.v1") is not None:
            from .verifiers_v1 import VerifiersV1

            return VerifiersV1(message["module"], message["path"], message["args"], token, clients, loop)
        raise TypeError(f"{module.__name__} has no function `load_environment`")

    maker = EnvironmentFactory(module, message["args"], clients, seed)
    env = maker.first(loop)
    disable_exit_hooks()
    of_library = getattr(sys.modules.get("verifiers"), "Environment", None)
    if of_library is not None and isinstance(env, of_library) and not callable(getattr(env, "step", None)):
        from .verifiers_legacy import VerifiersLegacy

        return VerifiersLegacy(env, clients, token, importlib.metadata.version("verifiers"))
    from .classic import Classic

    return Classic(list(env) if isinstance(env, (list, tuple)) else [env], maker, clients, seed)


def _has(name):
    try:
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None  # a bare folder is no module
    except ModuleNotFoundError:
        return False


def find(message):
    path, name = message["path"], message["module"]
    if path is not None:
        sys.path.insert(0, path)
    importlib.invalidate_caches()
    if not _has(name):
        raise NoSuchEnvironment(name)
    return importlib.import_module(name)


class RolloutJob:
    """One rollout."""

    def __init__(self, message, line):
        self.rollout, self.group, self.item = message["rollout"], message["group"], message["item"]
        self.url, self.sampling = message["url"], message["sampling"]
        self.members = message["members"]
        self._wire = line

    async def turn(self, messages=None, tokens=None, stop=None):
        """Asks the policy; the answer becomes part of the episode. An empty `stop` is no stop, `None` is the run's."""
        draw = sdk.draw({"stop": stop} if stop is not None else None)
        return await self._wire.asked("turn", messages=messages, tokens=tokens, draw=draw)


class ComparedGroup:
    """Rollouts whose rewards compare them.

    One that is cancelled leaves without a reward, and the others are compared without it, as they are without one that
    failed. Only when all of them are cancelled is their comparison cancelled, too.
    """

    def __init__(self, members):
        self.expected = members
        self.left = {}  # jobs without a result, by rollout
        self.playing = {}  # tasks, by rollout, once all members are there
        self.task = None


class RolloutRunner:
    def __init__(self, line, environment):
        self._wire, self._env = line, environment
        self._tasks, self._groups = {}, {}

    def on_message(self, message):
        kind = message["t"]
        if kind == "run":
            job = RolloutJob(message, self._wire)
            if self._env.group_rewards:
                group = self._groups.setdefault(job.group, ComparedGroup(job.members))
                group.left[job.rollout] = job
                self._begin_if_whole(job.group)
            else:
                self._start(self._run_rollout(job), job.rollout)
        elif kind == "cancel":
            self._cancel(message["rollout"], message["group"])
        elif kind in ("rows", "observe"):
            self._start(self._reply(message), f"call {message['call']}")
        elif kind == "forget" and hasattr(self._env, "forget"):
            self._env.forget(message["group"])
        elif kind == "stop":
            self._start(self._stop(), "stop")

    def _start(self, work, name):
        task = asyncio.ensure_future(work)
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return task

    def _begin_if_whole(self, name):
        group = self._groups[name]
        if group.expected == 0:
            del self._groups[name]
        elif len(group.left) == group.expected:
            group.task = self._start(self._run_group(group), name)
            group.task.add_done_callback(lambda _: self._groups.pop(name))

    def _cancel(self, rollout, name):
        group = self._groups.get(name)
        if group is None:
            task = self._tasks.get(rollout)
            if task is not None:
                task.cancel()
            return
        task = group.playing.get(rollout)
        if task is not None and not task.done():
            task.cancel()  # it tells of its end when it has ended
            return
        if rollout in group.left:
            self._done(group.left.pop(rollout), error=asyncio.CancelledError("the rollout was given up"))
        if group.task is None:
            group.expected -= 1
            self._begin_if_whole(name)
        elif not group.left:
            group.task.cancel()

    async def _reply(self, message):
        call = message["call"]
        try:
            if message["t"] == "observe":
                values = await self._env.observe(message["item"])
            else:
                values = portion(self._env.rows(message["start"], message["count"]))
            self._wire.send({"t": "reply", "call": call, "values": values})
        except Exception as error:
            self._wire.send({"t": "failed", "call": call, "error": describe_error(error)})

    async def _run_rollout(self, job):
        ROLLOUT.set(job.rollout)
        try:
            report = await self._env.run_rollout(job)
        except BaseException as error:
            self._done(job, error=error)
        else:
            self._done(job, report)

    async def _run_group(self, group):
        def leave(job, report=None, error=None):
            if group.left.pop(job.rollout, None) is not None:  # else it was cancelled
                self._done(job, report, error)

        async def one(play, job):
            ROLLOUT.set(job.rollout)
            try:
                played = await play(job)
            # None of these may reach the event loop: they would end it, or cancel the others.
            except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
                leave(job, error=error)
                return None
            self._wire.send({"t": "phase", "rollout": job.rollout, "phase": "waits"})
            return played

        async def run(play):
            group.playing = {job.rollout: asyncio.ensure_future(one(play, job)) for job in jobs}
            played = await asyncio.gather(*group.playing.values())
            for rollout in group.left:
                self._wire.send({"t": "phase", "rollout": rollout, "phase": "compared"})
            return played

        jobs = list(group.left.values())
        try:
            for job, report in await self._env.run_group(jobs, run):
                try:
                    leave(job, report())
                except Exception as error:
                    leave(job, error=error)
        except BaseException as error:
            for job in jobs:
                leave(job, error=error)

    def _done(self, job, report=None, error=None):
        message = {"t": "done", "rollout": job.rollout, "report": report}
        if error is not None:
            message["error"] = describe_error(error)
        try:
            self._wire.send(message)
        except (TypeError, ValueError) as unsendable:
            self._wire.send({"t": "done", "rollout": job.rollout, "report": None, "error": describe_error(unsendable)})

    async def _stop(self):
        for task in list(self._tasks.values()):
            if task is not asyncio.current_task():
                task.cancel()
        if hasattr(self._env, "close"):
            await self._env.close()
        os.killpg(0, signal.SIGKILL)


def main():
    sys.stdin = open(os.devnull)
    sys.stdout = sys.stderr = TaggedOutput()
    line = wire.Wire(INCOMING, OUTGOING)
    hello, message = line.next(), line.next()
    randomness.install()
    random.seed(hello["seed"])
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    clients = Clients(line, hello["facts"])
    sdk.install_stubs()
    try:
        environment = load(message, clients, hello["token"], hello["seed"], loop)
        items = environment.items
        if items == 0:
            raise ValueError(
                "the environment has no rows: the `dataset` that `load_environment` made is empty. If it is fetched from"
                " somewhere, that may have failed; MINDS_LOG=python=debug shows what the package printed"
            )
        ready = {
            "t": "ready",
            "python": sys.version.split()[0],
            "verifiers": version("verifiers"),
            "kind": environment.kind,
            "items": items,
            "group_rewards": environment.group_rewards,
            "borrows": environment.borrows,
            "preview": loop.run_until_complete(preview(environment)),
            "digest": digest(environment),
            **environment.describe(),
        }
    except BaseException as error:
        line.send({"t": "failed", "call": 0, "missing": isinstance(error, NoSuchEnvironment), "error": describe_error(error)})
        ready = None
    # The library installs handlers that exit; here the end of the input does.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ready is not None:
        line.send(ready)
        line.serve(loop, RolloutRunner(line, environment).on_message)
    else:
        line.next()


async def preview(environment):
    """The prompt of the first item, or nothing if building it queries the policy, which does not exist yet."""
    try:
        return await environment.preview()
    except wire.RequestError:
        return []


def portion(rows):
    """As many of these rows as one message holds with ease."""
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += len(str(row))
        if size > PORTION:
            break
    return found


def digest(environment):
    """Of some of its rows: whether another process has loaded the same ones."""
    places = sorted({place * (environment.items - 1) // 63 for place in range(64)})
    rows = [row for place in places for row in environment.rows(place, 1)]
    # What has no text of its own has an address in it.
    text = re.sub("0x[0-9a-f]+", "", json.dumps(rows, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest() if rows else ""


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
