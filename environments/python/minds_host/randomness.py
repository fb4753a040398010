"""Randomness that an item decides, so that item *i* is the same task in every process and after a resume.

The generators that rollouts share, Python's, numpy's and torch's own and those of the package's modules and classes, have
a state for each rollout, which is swapped in around every step of its calls. Those that an environment object holds are
seeded when the object is handed out. A `random.Random()` without a seed takes one from Python's own generator, and so does
numpy's `default_rng()`. What asks the system (`random.SystemRandom`, `secrets`, `uuid4`, `os.urandom`) cannot be set.
"""

import collections
import functools
import inspect
import random
import sys
import tempfile
import types

from .client import NeverCopied

MOST = 100_000  # objects that a search for generators looks at

DATA = ("dataset", "eval_dataset")  # rows are shared by all objects
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, bytearray)
LEAVES = {str, bytes, int, float, complex, bool, type(None), types.ModuleType, types.BuiltinFunctionType}
# Libraries whose objects are not entered: data, generators, and what is no state of a task, such as connections.
CLOSED = {
    "_socket", "_ssl", "_thread", "aiohttp", "anthropic", "asyncio", "concurrent", "datasets", "httpcore", "httpx", "logging",
    "numpy", "openai", "pandas", "pyarrow", "random", "requests", "socket", "ssl", "threading", "tiktoken", "tokenizers",
    "torch", "transformers", "urllib3", "weakref",
}


def install():
    """Makes generators without a seed take theirs from Python's own."""
    tempfile.mktemp()  # names of files are drawn apart: processes must not draw the same
    seed = random.Random.seed

    def seeded(self, a=None, version=2):
        if a is None and not isinstance(self, random.SystemRandom):
            a = random.getrandbits(128)
        seed(self, a, version)

    random.Random.seed = seeded
    random.seed = functools.partial(seeded, random._inst)


def _install_numpy(numpy):
    default_rng = numpy.random.default_rng
    if not hasattr(default_rng, "minds"):

        @functools.wraps(default_rng)
        def seeded(seed=None):
            return default_rng(random.getrandbits(128) if seed is None else seed)

        seeded.minds = True
        numpy.random.default_rng = seeded


class SeededRandomness:
    """What the shared generators yield to one rollout."""

    def __init__(self, seed, shared=()):
        self._seed, self._shared = seed, shared
        self._states, self._outer = {}, []

    def __enter__(self):
        generators = [*_library_generators(), *enumerate(self._shared)]
        self._outer = [(name, generator, _state(generator)) for name, generator in generators]
        for name, generator in generators:
            if name in self._states:
                _restore(generator, self._states[name])
            else:
                _seed(generator, f"{self._seed}/{name}")

    def __exit__(self, *_):
        for name, generator, state in self._outer:
            self._states[name] = _state(generator)
            _restore(generator, state)

    def seed_held(self, held):
        """Seeds the generators that an environment object holds."""
        for place, generator in enumerate(held):
            _seed(generator, f"{self._seed}/held/{place}")

    async def call(self, function, *args, **kwargs):
        """What the function returns, awaited where it wants to be, under this chance."""
        with self:
            value = function(*args, **kwargs)
        return await self.awaited(value) if inspect.isawaitable(value) else value

    async def awaited(self, value):
        """What comes of an awaitable whose steps are taken under this chance."""
        return await _Steps(self, value)


class _Steps:
    """Awaits another awaitable and swaps in one state of the random generators around each of its steps."""

    def __init__(self, chance, awaitable):
        self._chance, self._awaitable = chance, awaitable

    def __await__(self):
        steps, raised = self._awaitable.__await__(), None
        while True:
            try:
                with self._chance:
                    wanted = next(steps) if raised is None else steps.throw(raised)
            except StopIteration as end:
                return end.value
            try:
                raised = None
                yield wanted
            except BaseException as error:  # a cancellation goes to whoever waits within
                raised = error


def held_by(root):
    """The generators that an object holds, at any depth, in an order that depends on the object only."""
    return [found for found in walk([root]) if is_generator(found)]


def shared_by(module):
    """The generators that a package's modules and their classes hold."""
    package = module.__name__ + "."
    own = [m for name, m in sorted(sys.modules.items()) if m is module or name.startswith(package)]
    library = {id(generator) for _, generator in _library_generators()}
    values = [value for m in own for value in vars(m).values() if not isinstance(value, types.ModuleType)]
    names = {m.__name__ for m in own}
    classes = [value for value in values if isinstance(value, type) and value.__module__ in names]
    values += [value for kind in classes for value in vars(kind).values()]
    return [g for g in walk(values) if is_generator(g) and id(g) not in library]


def walk(roots):
    """Objects that can be reached, each once, near ones first, `MOST` of them."""
    seen, queue = {}, collections.deque(roots)
    while queue and len(seen) < MOST:
        value = queue.popleft()
        if type(value) in LEAVES or id(value) in seen:
            continue
        seen[id(value)] = value  # held, so that no other object takes its id
        yield value
        queue.extend(children(value))


def children(value):
    """What an object holds: elements, attributes, and what functions are closed over. Data sets are not entered."""
    kind, found = type(value), []
    if issubclass(kind, (type, NeverCopied)) or kind.__module__.partition(".")[0] in CLOSED:
        return found
    if issubclass(kind, dict):
        found.extend(dict.values(value))
    elif issubclass(kind, CONTAINERS) and not issubclass(kind, bytearray):
        found.extend(value)
    elif kind is types.FunctionType:
        found.extend(cell.cell_contents for cell in filled(value))
        found.extend([value.__defaults__, value.__kwdefaults__])
    elif kind is types.MethodType:
        found.extend([value.__self__, value.__func__])
    elif issubclass(kind, functools.partial):
        found.extend([value.func, value.args, value.keywords])
    found.extend(item for name, item in attributes(value).items() if name not in DATA)
    found.extend(item for _, item in slots(value))
    return found


def attributes(value):
    """The attributes of an instance by name; none of what has no dictionary of them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def filled(function):
    """The cells of a closure that have a value."""
    for cell in function.__closure__ or ():
        try:
            cell.cell_contents
        except ValueError:
            continue
        yield cell


def slots(value):
    """Names and values of attributes that stand in slots."""
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__") and isinstance(vars(kind).get(name), types.MemberDescriptorType):
                try:
                    yield name, object.__getattribute__(value, name)
                except AttributeError:
                    continue


def _library_generators():
    found = [("python", random._inst)]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if hasattr(numpy, "random"):
        _install_numpy(numpy)
        found.append(("numpy", numpy.random.mtrand._rand))
    if hasattr(torch, "default_generator"):
        found.append(("torch", torch.default_generator))
    return found


def is_generator(value):
    """Whether it is a generator that can be seeded."""
    kind = type(value)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if hasattr(numpy, "random"):
        kinds = (numpy.random.RandomState, numpy.random.Generator, numpy.random.BitGenerator)
        if issubclass(kind, kinds):
            return True
    return hasattr(torch, "Generator") and issubclass(kind, torch.Generator)


def _seed(generator, text):
    if isinstance(generator, random.Random):
        generator.seed(text)
        return
    whole = random.Random(text).getrandbits(32)
    if hasattr(generator, "manual_seed"):
        generator.manual_seed(whole)
    elif hasattr(generator, "get_state"):
        generator.seed(whole)
    else:
        bits = getattr(generator, "bit_generator", generator)
        bits.state = type(bits)(whole).state


def _state(generator):
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state()
    return getattr(generator, "bit_generator", generator).state


def _restore(generator, state):
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).state = state
