"""Values of user code as plain ones: JSON's types, finite numbers, messages as mappings."""

import copy
import inspect
import itertools
import json
import math
import reprlib
import traceback

LARGEST = 3.4028234663852886e38  # of 32 bits
PROMPT = 1 << 18  # characters of a message of a prompt that are shown


async def settled(value):
    """What user code returned, awaited where it wants to be."""
    return await value if inspect.isawaitable(value) else value


def plain(value, depth=0):
    """JSON's types; what has none becomes its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < (1 << 64) else decimal(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth > 32:
        return str(value)
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if hasattr(value, "items"):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, depth + 1) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    return str(value)


def decimal(value):
    """The digits of an integer; in hexadecimal beyond the length that Python writes in decimal."""
    try:
        return str(value)
    except ValueError:
        return hex(value)


def own(row):
    """A row that a reward may change: what can be copied is a copy, in the types that the package gave it."""
    try:
        return copy.deepcopy(dict(row))
    except Exception:  # user code may put anything into a row
        return dict(row)


def shown(value, text=1 << 12, items=256):
    """A value as people are shown it: plain, and long texts and lists cut."""
    return _cut(plain(value), text, items)


def _cut(value, text, items):
    if isinstance(value, str) and len(value) > text:
        return f"{value[:text]} … ({len(value) - text} more characters)"
    if isinstance(value, dict):
        return {_cut(k, text, items): _cut(v, text, items) for k, v in itertools.islice(value.items(), items)}
    if isinstance(value, list):
        rest = [f"… ({len(value) - items} more)"] if len(value) > items else []
        return [*(_cut(v, text, items) for v in value[:items]), *rest]
    return value


def number(value):
    """The number that a value stands for, or None: text, None, NaN and what no float of 32 bits holds are no rewards."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        found = float(value)
    except Exception:  # user code, or a tensor of several elements
        return None
    return found if abs(found) <= LARGEST else None


def short(value):
    """A value and its type, for a complaint."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def describe_error(error):
    """An exception in words, with the place where it was raised."""
    try:
        message = str(error)
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:  # an exception of user code may fail to describe itself
        message = "it has no words"
        text = "".join(traceback.format_tb(error.__traceback__))
    return {"type": type(error).__name__, "message": message[:4000], "traceback": text[-8000:]}


def no_reward(message):
    """The error of a value that is no reward."""
    return {"type": "ValueError", "message": message, "traceback": ""}


def field(value, name, default=None):
    """A field of a mapping or an object."""
    if hasattr(value, "get") and hasattr(value, "keys"):
        return value.get(name, default)
    return getattr(value, name, default)


def messages(value):
    """A prompt as chat messages: text is what the user says, empty fields are left out."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    found = []
    for message in value:
        entry = {k: v for k, v in plain(message).items() if v is not None}
        entry.setdefault("content", "")
        found.append(entry)
    return found


def loads(value):
    """`info` columns are sometimes JSON in a text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
