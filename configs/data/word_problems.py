"""Writes the word problems of `word_problems.jsonl`: `python3 configs/data/word_problems.py > configs/data/word_problems.jsonl`."""

import json

NAMES = ["Ada", "Ben", "Chen", "Dora", "Elif", "Femi", "Gita", "Hugo", "Ines", "Jon"]
THINGS = ["apples", "books", "coins", "stamps", "marbles", "pencils", "shells", "cards"]


def problem(n):
    """The problem of an index: its kind goes in turn, everything else follows from the index."""
    name, other = NAMES[n % 10], NAMES[(n * 3 + 1 + n // 10) % 10]
    if other == name:
        other = NAMES[(n + 5) % 10]
    things = THINGS[(n * 5 + n // 8) % 8]
    a, b, c = 3 + n * 7 % 47, 2 + n * 11 % 19, 2 + n * 5 % 7
    kinds = [
        ("sum", f"{name} has {a} {things}, and {other} gives {name} {b} more. How many {things} does {name} have now?", a + b),
        ("difference", f"{name} has {a + b} {things} and loses {b} of them. How many {things} are left?", a),
        ("product", f"{name} buys {c} boxes with {b} {things} each. How many {things} are that?", b * c),
        ("quotient", f"{name} shares {b * c} {things} equally among {c} friends. How many {things} does each friend get?", b),
        ("two_steps", f"{name} fills {c} bags with {b} {things} each and has {a} {things} left over. How many {things} does {name} have?", b * c + a),
    ]
    kind, question, answer = kinds[n % 5]
    return {"question": question, "answer": answer, "kind": kind}


for n in range(200):
    print(json.dumps(problem(n)))
