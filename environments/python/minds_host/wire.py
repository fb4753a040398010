"""Messages between this process and the one that started it.

Nothing that user code prints can reach them: the descriptors 0 and 1 are taken aside before anything else is imported,
and then point to nowhere and to standard error. A thread of its own reads, so signs of life are given and answers
arrive while the event loop is blocked. The end of the input ends the process and its whole group.

A message is a line of JSON. Text that is no Unicode (half a surrogate pair) is sent with `?` in its place. What JSON has no
form for is refused where it is sent: NaN and infinities by a ValueError, bytes and foreign types by a TypeError.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import itertools
import json
import os
import queue
import select
import signal
import threading
import time

LIMIT = 256 << 20  # bytes of a message
OPENING = b"\x00minds-host\n"  # whatever came before it was printed by the interpreter's start
BEHIND = 1024  # messages that may wait to be written
GRACE = 5.0  # seconds between the end of the input and the end of the process

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
ROLLOUT = contextvars.ContextVar("rollout", default=None)


def take_descriptors():
    """Private copies of 0 and 1; what they stood for is no longer reachable by number."""
    incoming, outgoing = os.dup(0), os.dup(1)
    for fd in (incoming, outgoing):
        os.set_inheritable(fd, False)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return incoming, outgoing


class RequestError(RuntimeError):
    """What was asked of the policy could not be answered."""


class Wire:
    """Sends from any thread; `on_message` is called on the event loop."""

    def __init__(self, incoming, outgoing):
        self._in, self._out = incoming, outgoing
        os.set_blocking(outgoing, False)
        self._lines, self._writing, self._turn = collections.deque([OPENING]), False, threading.Condition()
        self._calls = itertools.count(1)
        self._waiting = {}
        self._early = queue.Queue()
        self._starting = threading.Lock()
        self._loop = self._on_message = None
        self._tick = time.monotonic()
        threading.Thread(target=self._read, name="wire-in", daemon=True).start()
        threading.Thread(target=self._write, name="wire-out", daemon=True).start()

    def next(self):
        """The next message, before the event loop runs."""
        return self._early.get()

    def serve(self, loop, on_message):
        """Runs the event loop; messages go to `on_message` from now on."""

        def tick():
            self._tick = time.monotonic()
            loop.call_later(0.5, tick)

        tick()
        with self._starting:  # messages keep their order
            while not self._early.empty():
                loop.call_soon(on_message, self._early.get())
            self._loop, self._on_message = loop, on_message
        loop.run_forever()

    def send(self, message):
        line = _encode(message)
        with self._turn:
            while len(self._lines) >= BEHIND:
                self._turn.wait()
            self._put(line)

    def ask(self, op, rollout=None, **args):
        """Asks the other side; the future is resolved off the event loop, so its result may be waited for on it."""
        call, future = next(self._calls), concurrent.futures.Future()
        self._waiting[call] = future
        rollout = rollout if rollout is not None else ROLLOUT.get()
        self.send({"t": "ask", "call": call, "rollout": rollout, "op": {"op": op, **args}})
        return future

    async def asked(self, op, **args):
        """The same on the event loop. Answers that arrive together are delivered together."""
        call, future = next(self._calls), asyncio.get_running_loop().create_future()
        self._waiting[call] = future
        self.send({"t": "ask", "call": call, "rollout": ROLLOUT.get(), "op": {"op": op, **args}})
        return await future

    def _read(self):
        held = []
        try:
            while data := os.read(self._in, 1 << 16):
                whole, newline, rest = data.rpartition(b"\n")
                if newline:
                    lines = b"".join((*held, whole)).split(b"\n")
                    held = []
                    self._take([json.loads(line) for line in lines])
                held.append(rest)
        finally:
            self._end()

    def _take(self, messages):
        """What came at one moment wakes an event loop once."""
        work = {}
        for message in messages:
            kind = message["t"]
            if kind == "beat":
                running = self._loop is not None
                lag = time.monotonic() - self._tick if running else 0.0
                with self._turn:
                    if len(self._lines) < BEHIND:  # so much to say is a sign of life, too
                        self._put(_encode({"t": "beat", "n": message["n"], "lag": lag}))
            elif kind == "answer":
                future = self._waiting.pop(message["call"], None)
                if isinstance(future, asyncio.Future):
                    work.setdefault(future.get_loop(), []).append((_settle, future, message))
                elif future is not None and future.set_running_or_notify_cancel():
                    _settle(future, message)
            else:
                with self._starting:
                    if self._loop is None:
                        self._early.put(message)
                    else:
                        work.setdefault(self._loop, []).append((self._on_message, message))
        for loop, calls in work.items():
            with contextlib.suppress(RuntimeError):  # a loop of user code may be closed by now
                loop.call_soon_threadsafe(_do, loop, calls)

    def _put(self, line):
        """Writes a message, or leaves what the pipe does not take at once to the thread that may wait."""
        if not self._lines and not self._writing:
            with contextlib.suppress(BlockingIOError):
                line = line[os.write(self._out, line):]
        if line:
            self._lines.append(line)
            self._turn.notify_all()

    def _write(self):
        room = select.poll()
        room.register(self._out, select.POLLOUT)
        while True:
            with self._turn:
                self._writing = False
                while not self._lines:
                    self._turn.wait()
                data, self._writing = memoryview(b"".join(self._lines)), True
                self._lines.clear()
                self._turn.notify_all()
            while data:
                room.poll()
                data = data[os.write(self._out, data):]

    def _end(self):
        """The other side is gone: a moment for clean-up, then everything in this group ends."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._on_message, {"t": "stop"})
                time.sleep(GRACE)
        finally:
            os.killpg(0, signal.SIGKILL)


def _encode(message):
    line = JSON.encode(message).encode("utf-8", "replace") + b"\n"
    if len(line) > LIMIT:
        raise ValueError(f"a message of {len(line)} bytes is longer than the limit of {LIMIT}")
    return line


def _do(loop, calls):
    for function, *args in calls:
        try:
            function(*args)
        except Exception as error:  # keeps nothing from the others
            loop.call_exception_handler({"message": "a message was not understood", "exception": error})


def _settle(future, message):
    if future.done():  # given up
        return
    if message.get("error") is not None:
        future.set_exception(RequestError(message["error"]))
    else:
        future.set_result(message.get("ok"))
