"""Reads the files of a run folder while the run appends to them. Nothing is written or locked."""

import json
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

COLUMNS = ["step", "environment", "group", "member", "reward", "advantage", "prompt", "completion"]
ROLLOUTS = 8  # rows of a table
TEXT = 4000  # characters of a prompt or a completion

Row = Dict[str, Any]


class GrowingFile:
    """A file with one JSON object a line, to which another process appends; `metrics.json` has brackets around them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_rows(self, is_complete: bool) -> List[Row]:
        """The rows since the last call. A line that is still being written is left for the next call, unless the file is
        complete: then it is damaged, and is skipped."""
        rows = []
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return rows
        with file:
            file.seek(self._offset)
            for line in file:
                text = line.strip().rstrip(b",")
                if text == b"]":
                    break  # overwritten by the next row
                row = _parsed(text)
                if row is None and text not in (b"", b"[") and not is_complete:
                    break
                self._offset += len(line)
                if row is not None:
                    rows.append(row)
        return rows


def _parsed(text: bytes) -> Optional[Row]:
    try:
        row = json.loads(text)
        row["step"] = int(row["step"])
    except (ValueError, TypeError, KeyError):
        return None
    return row


def numbers(row: Row) -> Dict[str, float]:
    """The finite numbers of a row but its step, by name."""
    return {
        name: value
        for name, value in row.items()
        if name != "step"
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def rollout_table(folder: Path, step: int) -> Optional[List[List[Any]]]:
    """The first rollouts of a step, each with the values of COLUMNS; None if the step has none that can be read."""
    lines = _rollout_lines(folder / "rollouts", step)
    if lines is None:
        return None
    table = []
    for line in lines:
        row = _parsed(line)
        if row is None:
            continue
        prompt = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in row.get("prompt", []))
        completion = "\n---\n".join(str(turn.get("text", "")) for turn in row.get("turns", []))
        cells = [row.get(name) for name in COLUMNS[:-2]]
        table.append([*cells, _cut(prompt), _cut(completion)])
        if len(table) == ROLLOUTS:
            break
    return table


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else text[:TEXT] + "…"


def _rollout_lines(folder: Path, step: int) -> Optional[Iterator[bytes]]:
    plain = folder / f"step_{step:06}.jsonl"
    if plain.is_file():
        return _lines(plain.open("rb"))
    compressed = folder / f"step_{step:06}.jsonl.zst"
    opener = _zstd_opener()
    return _lines(opener(compressed)) if opener and compressed.is_file() else None


def _lines(file: Any) -> Iterator[bytes]:
    with file:
        yield from file


def _zstd_opener() -> Any:
    """What opens a file compressed with zstd: the standard library from Python 3.14 on, else the package `zstandard`."""
    try:
        from compression import zstd

        return zstd.open
    except ImportError:
        pass
    try:
        import io

        import zstandard

        return lambda path: io.BufferedReader(zstandard.open(path, "rb"))
    except ImportError:
        return None
