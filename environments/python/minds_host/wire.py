"""Frames between this process and the one that started it.

Nothing that user code prints can reach them: the descriptors 0 and 1 are taken aside before anything else is imported,
and then point to nowhere and to standard error. A thread of its own reads, so signs of life are given and answers
arrive while the event loop is blocked. The end of the input ends the process and its whole group.

A frame is its length in four bytes, big end first, and a MessagePack map.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import itertools
import os
import queue
import signal
import struct
import threading
import time

LIMIT = 256 << 20  # bytes of a frame
OPENING = b"\x00minds-host\n"  # whatever came before it was printed by the interpreter's start
GRACE = 5.0  # seconds between the end of the input and the end of the process

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


class Refused(RuntimeError):
    """What was asked of the policy could not be answered."""


class Wire:
    """Sends from any thread; `on_message` is called on the event loop."""

    def __init__(self, incoming, outgoing, pack, unpack):
        self._in, self._out = os.fdopen(incoming, "rb", 1 << 16), outgoing
        self._pack, self._unpack = pack, unpack
        self._queue = queue.Queue(maxsize=1024)
        self._calls = itertools.count(1)
        self._waiting = {}
        self._early = queue.Queue()
        self._starting = threading.Lock()
        self._loop = self._on_message = None
        self._tick = time.monotonic()
        self._queue.put(OPENING)
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
        self._queue.put(self._frame(message))

    def _frame(self, message):
        body = self._pack(message)
        if len(body) > LIMIT:
            raise ValueError(f"a message of {len(body)} bytes is longer than the limit of {LIMIT}")
        return struct.pack(">I", len(body)) + body

    def ask(self, op, rollout=None, **args):
        """Asks the other side; the future is resolved off the event loop, so its result may be waited for on it."""
        call, future = next(self._calls), concurrent.futures.Future()
        self._waiting[call] = future
        rollout = rollout if rollout is not None else ROLLOUT.get()
        self.send({"t": "ask", "call": call, "rollout": rollout, "op": {"op": op, **args}})
        return future

    async def asked(self, op, **args):
        return await asyncio.wrap_future(self.ask(op, **args))

    def _read(self):
        try:
            while True:
                head = self._in.read(4)
                if len(head) < 4:
                    break
                size = struct.unpack(">I", head)[0]
                body = self._in.read(size)
                if len(body) < size:
                    break
                self._take(self._unpack(body))
        finally:
            self._end()

    def _take(self, message):
        kind = message["t"]
        if kind == "beat":
            running = self._loop is not None
            lag = time.monotonic() - self._tick if running else 0.0
            with contextlib.suppress(queue.Full):  # so much to say is a sign of life, too
                self._queue.put_nowait(self._frame({"t": "beat", "n": message["n"], "lag": lag}))
        elif kind == "answer":
            future = self._waiting.pop(message["call"], None)
            if future is not None and future.set_running_or_notify_cancel():
                if message.get("error") is not None:
                    future.set_exception(Refused(message["error"]))
                else:
                    future.set_result(message.get("ok"))
        else:
            with self._starting:
                if self._loop is None:
                    self._early.put(message)
                else:
                    self._loop.call_soon_threadsafe(self._on_message, message)

    def _write(self):
        while True:
            frame = memoryview(self._queue.get())
            while frame:
                frame = frame[os.write(self._out, frame):]

    def _end(self):
        """The other side is gone: a moment for clean-up, then everything in this group ends."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._on_message, {"t": "stop"})
                time.sleep(GRACE)
        finally:
            os.killpg(0, signal.SIGKILL)
