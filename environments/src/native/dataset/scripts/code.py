"""Runs a program with its tests, or with an input, under limits. Reads one JSON object; writes its secret if all tests pass."""

import json
import os
import resource
import sys

task = json.loads(sys.stdin.buffer.readline())
if os.getuid() == 0 and task["user"]:
    os.setgroups([])
    os.setgid(task["user"])
    os.setuid(task["user"])


def processes():
    """Threads of this user: the limit counts them all."""
    count = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        try:
            with open(f"/proc/{name}/status") as status:
                fields = dict(line.split(":", 1) for line in status if ":" in line)
            if int(fields["Uid"].split()[0]) == os.getuid():
                count += int(fields["Threads"])
        except (OSError, KeyError, ValueError):
            pass
    return count


def limit(name, value):
    if hasattr(resource, name):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (ValueError, OSError):
            pass


limit("RLIMIT_CPU", task["seconds"])
limit("RLIMIT_AS", task["memory"])
limit("RLIMIT_FSIZE", task["file"])
limit("RLIMIT_NPROC", task["processes"] + processes())
limit("RLIMIT_NOFILE", 64)
limit("RLIMIT_CORE", 0)
os.environ["HOME"] = os.environ["TMPDIR"] = os.getcwd()

# Without this line no verdict is given: the limits could not be set.
os.write(1, b"ready\n")

# The program's parent is this process, not the run.
child = os.fork()
if child:
    status = os.waitpid(child, 0)[1]
    os._exit(os.waitstatus_to_exitcode(status) & 127)

secret = task.pop("secret")
names = {"__name__": "__main__", "__builtins__": __builtins__}
if task["tests"] is None:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as stream:
            try:
                stream.write(task["input"].encode())
            except BrokenPipeError:
                pass
        os._exit(0)
    os.close(writer)
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    exec(compile(task["code"], "answer.py", "exec"), names)
else:
    result = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    tests = compile(task["tests"], "tests.py", "exec")
    exec(compile(task["code"], "answer.py", "exec"), names)
    exec(tests, names)
    os.write(result, secret.encode())
