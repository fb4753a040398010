"""Everything that user code does wrong, by the word that the policy says."""

import asyncio
import ctypes
import os
import subprocess
import sys
import time


class Faults:
    def __init__(self):
        self.text = "x" * 100

    def initial_observation(self):
        return "Say what is to happen."

    async def step(self, action):
        what, _, rest = action.partition(" ")
        print(f"about to {what}")
        return {"reward": await getattr(self, what)(rest)}

    async def nothing(self, _):
        return 1.0

    async def wait(self, seconds):
        await asyncio.sleep(float(seconds))
        return 1.0

    async def abort(self, _):
        print("last words", file=sys.stderr)
        os.abort()

    async def leave(self, code):
        os._exit(int(code))

    async def segfault(self, _):
        ctypes.string_at(0)

    async def orphan(self, path):
        process = subprocess.Popen(["sleep", "600"])
        with open(path, "w") as file:
            file.write(str(process.pid))
        os.abort()

    async def block(self, seconds):
        time.sleep(float(seconds))
        return 1.0

    async def deaf(self, _):
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    async def several_elements(self, _):
        class Tensor:
            def __float__(self):
                raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

        return Tensor()

    async def raising(self, words):
        raise ValueError(words)

    async def exiting(self, _):
        raise SystemExit(3)

    async def unreachable(self, _):
        raise ConnectionRefusedError(111, "Connection refused")

    async def text_reward(self, _):
        return "very good"

    async def no_reward(self, _):
        return None

    async def nan(self, _):
        return float("nan")

    async def flood(self, megabytes):
        line = "f" * 99 + "\n"
        for _ in range(int(megabytes) * 10_000):
            os.write(1, line.encode())
        return 1.0

    async def chatter(self, _):
        print("printed")
        sys.stdout.write("no end of line" * 1000)
        os.system("echo from a shell")
        os.write(1, b"raw\n")
        sys.__stdout__.write("the first stdout\n")
        return 1.0

    async def lie(self, hexadecimal):
        # The descriptor of the messages can only be found by trying all of them.
        for fd in range(3, 64):
            try:
                os.write(fd, bytes.fromhex(hexadecimal))
            except OSError:
                pass
        await asyncio.sleep(600)

    async def environment(self, name):
        return 1.0 if name in os.environ else 0.0

    async def read_input(self, _):
        return float(len(sys.stdin.read()) + len(os.read(0, 10)))


def load_environment(fault=None):
    if fault == "raise":
        raise RuntimeError("no data today")
    if fault == "exit":
        sys.exit(4)
    if fault == "sleep":
        time.sleep(600)
    if fault == "nothing":
        return object()
    if fault == "empty":
        class Empty:
            dataset = []
            rubric = {"funcs": [len], "weights": [1]}

        return Empty()
    return Faults()
