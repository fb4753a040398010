"""Compares mathematical answers with math-verify: one JSON line in, one out."""

import json
import os
import resource
import sys

# What libraries print must not reach the answers.
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
memory = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

from math_verify import parse, verify  # noqa: E402


def read(text):
    """What a text says; text without LaTeX marks is read as LaTeX first."""
    marks = ("$", "\\(", "\\[", "\\boxed")
    if not any(mark in text for mark in marks):
        found = parse(f"${text}$")
        if found:
            return found
    return parse(text)


for line in sys.stdin:
    task = json.loads(line)
    right = read(task["reference"])
    found = read(task["answer"])
    result = {
        "reference": bool(right),
        "read": str(found[0]) if found else None,
        "correct": bool(right and found and verify(right, found)),
    }
    print(json.dumps(result), file=answers, flush=True)
