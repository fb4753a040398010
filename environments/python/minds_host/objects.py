"""Environment objects, one for each rollout that needs one at the same time.

An object is what `load_environment` and `build` return when they are called once more, so functions that are closed over it
see the object that is played. What a rollout changed is set back before the next one is given the object. An object that
holds what cannot be set back, such as an iterator or an open file, is dropped, and the next rollout has one loaded.
"""

import asyncio
import atexit
import collections
import contextlib
import copy
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import pathlib
import re
import signal
import types
import uuid

from . import randomness
from .client import NeverCopied

_LARGEST = 1 << 20  # bytes of an array that is copied
# What a rollout cannot change.
_FIXED = (
    *randomness.LEAVES, tuple, frozenset, range, slice, type, types.MethodType, functools.partial, re.Pattern, decimal.Decimal,
    fractions.Fraction, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, enum.Enum, pathlib.PurePath,
    uuid.UUID, inspect.Signature, NeverCopied,
)


class ObjectSnapshot:
    """What everything within an object is now."""

    def __init__(self, root):
        self.generators, self._contents = [], []
        reached = list(randomness.walk([root]))
        taken = [self._take(value) for value in reached]
        self.is_whole = all(taken) and len(reached) < randomness.MOST

    def _take(self, value):
        """Notes what a value holds; whether that is all that a rollout may change."""
        kind = type(value)
        if randomness.is_generator(value):
            self.generators.append(value)  # seeded whenever the object is handed out
            return True
        if issubclass(kind, randomness.CONTAINERS) and not issubclass(kind, (tuple, frozenset)):
            self._note(value, _refill, list(value.items()) if issubclass(kind, dict) else list(value))
            return True
        if kind is types.FunctionType:
            self._note(value, _reclose, [(cell, cell.cell_contents) for cell in randomness.filled(value)])
            return True
        if kind.__module__ == "numpy" and hasattr(value, "nbytes"):
            if not hasattr(value, "flags") or not value.flags.writeable or not hasattr(value, "__setitem__"):
                return True
            if value.nbytes > _LARGEST or value.dtype.hasobject:
                return False
            self._note(value, _overwrite, value.copy())
            return True
        library = kind.__module__.partition(".")[0]
        if library in randomness.CLOSED:
            return library not in ("pandas", "torch")
        if issubclass(kind, _FIXED):
            return True
        self._note(value, _reset, list(randomness.slots(value)))
        return _is_its_attributes(value)

    def _note(self, value, put, contents):
        self._contents.append((value, dict(randomness.attributes(value)) or None, put, contents))

    def restore(self):
        for value, found, put, contents in self._contents:
            attributes = randomness.attributes(value)
            if attributes or found:
                attributes.clear()
                attributes.update(found or {})
            put(value, contents)


def _refill(value, contents):
    if isinstance(value, (bytearray, list)):
        value[:] = contents
    else:
        value.clear()
        (value.extend if isinstance(value, collections.deque) else value.update)(contents)


def _reclose(_, cells):
    for cell, contents in cells:
        cell.cell_contents = contents


def _overwrite(array, contents):
    array[...] = contents


def _reset(value, held):
    for name, _ in list(randomness.slots(value)):
        object.__delattr__(value, name)
    for name, contents in held:
        object.__setattr__(value, name, contents)


def _is_its_attributes(value):
    """Whether attributes are all that there is to an instance: what pickling asks, too."""
    kind = type(value)
    for name in ("__reduce__", "__reduce_ex__", "__getstate__"):
        if getattr(kind, name, None) is not getattr(object, name, None):
            return False
    try:
        object.__reduce_ex__(value, 2)
    except Exception:
        return False
    return True


class EnvironmentFactory:
    """Calls `load_environment` and `build`, as often as objects are needed."""

    def __init__(self, module, args, clients, seed):
        self._module, self._args, self._clients, self._seed = module, args, clients, seed
        # Generators that rollouts share: those that loading finds, and those that it leaves.
        self._found = self.shared = randomness.shared_by(module)
        self.borrows = False

    def first(self, loop):
        """What they return, called while no event loop runs: an environment, or a list of them."""
        seeded = self._seeded_randomness()

        def call(function):
            with seeded:
                value = function()
            return loop.run_until_complete(seeded.awaited(value)) if inspect.isawaitable(value) else value

        env = call(self._load())
        build = self._build(env)
        env = env if build is None else self._built(env, call(build))
        self.shared = randomness.shared_by(self._module)
        return env

    async def again(self):
        """The same while the event loop runs."""
        seeded = self._seeded_randomness()
        env = await seeded.call(_without_event_loop, self._load())
        build = self._build(env)
        return env if build is None else self._built(env, await seeded.call(_without_event_loop, build))

    def _seeded_randomness(self):
        return randomness.SeededRandomness(f"{self._seed}/load", self._found)

    def _load(self):
        return functools.partial(self._module.load_environment, **copy.deepcopy(self._args))

    def _build(self, env):
        if not callable(getattr(env, "build", None)):
            return None
        self._set_renderer(env)
        given, self.borrows = build_arguments(env.build, self._clients)
        return functools.partial(env.build, *given.args, **given.kwargs)

    def _built(self, env, built):
        # A `build` that returns nothing has configured the object that it was called on.
        env = env if built is None else built
        for one in env if isinstance(env, (list, tuple)) else [env]:
            self._set_renderer(one)
        return env

    def _set_renderer(self, value):
        if hasattr(value, "renderer") and value.renderer is None:
            value.renderer = self._clients.renderer


def _without_event_loop(function):
    """Calls a function as if no event loop ran: `load_environment` may run one of its own."""
    running = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return function()
    finally:
        asyncio.set_event_loop(running)
        asyncio._set_running_loop(running)


def disable_exit_hooks():
    """Later loads leave no trace in the process: the library would hold every object until its end, and catch signals."""
    set_handler = signal.signal

    def kept(signum, handler):
        if signum in (signal.SIGINT, signal.SIGTERM):
            return signal.getsignal(signum)
        return set_handler(signum, handler)

    signal.signal = kept
    atexit.register = lambda function, *_, **__: function


def build_arguments(build, clients):
    """What a `build` function is called with, and whether that lets it borrow adapters.

    Parameters are given what they are called after; a first one of any other name is given the sampling client.
    """
    named, signature = clients.named(), inspect.signature(build)
    parameters = list(signature.parameters.values())
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_name = {name: client for name, client in named.items() if takes_all or name in signature.parameters}
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    first = parameters[0] if parameters and parameters[0].kind in places else None
    if first is not None and first.name not in named:
        by_name.pop("sampling_client", None)
        return signature.bind(clients.sampler, **by_name), "service_client" in by_name
    return signature.bind(**by_name), "service_client" in by_name


class LoadedObject:
    """What one call of `load_environment` came to."""

    def __init__(self, envs):
        self.envs = envs
        self.record = ObjectSnapshot(envs)


class ObjectPool:
    """Lends what was loaded to one rollout at a time, and has more loaded when all is lent."""

    def __init__(self, maker, envs):
        self._maker, self._loading = maker, asyncio.Lock()
        self._data = [{name: held[name] for name in randomness.DATA if name in held} for held in map(randomness.attributes, envs)]
        self._free = [LoadedObject(envs)]

    @contextlib.asynccontextmanager
    async def acquire(self):
        loaded = await self._take()
        try:
            yield loaded
        finally:
            if loaded.record.is_whole:
                with contextlib.suppress(Exception):  # what cannot be set back is not lent again
                    loaded.record.restore()
                    self._free.append(loaded)

    async def _take(self):
        if not self._free:
            async with self._loading:
                if not self._free:
                    return await self._load()
        return self._free.pop()

    async def _load(self):
        made = await self._maker.again()
        envs = list(made) if isinstance(made, (list, tuple)) else [made]
        if len(envs) != len(self._data):
            raise ValueError(
                f"`load_environment` made {len(self._data)} environments when it was first called and {len(envs)} now; it"
                " must make the same ones whenever it is called with the same arguments"
            )
        for env, data in zip(envs, self._data):
            randomness.attributes(env).update(data)  # rows are held once
        return LoadedObject(envs)
