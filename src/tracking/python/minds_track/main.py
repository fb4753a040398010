"""Follows a run folder until the run ends, and sends what is new to one tracker.

Standard input has one line at the end of the run: its outcome. If the input ends without it, the run was killed. Where
the package raises while a run is under way, the same numbers are sent again later; a process that cannot begin ends.
"""

import json
import os
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Dict, List, Optional

from .place import Busy, Place
from .run_folder import GrowingFile, Row, numbers, rollout_table
from .trackers import TRACKERS

POLL_S = 1.0
LONGEST_PAUSE_S = 60.0  # between two attempts during the run
LAST_ATTEMPTS = 5  # after the run has ended; the run's own limit may come first
BUSY = 3  # exit code


class RunEnd:
    """The outcome of the run, as soon as it is known."""

    def __init__(self) -> None:
        self.outcome: Optional[str] = None
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Not through sys.stdin: a thread that waits in it breaks the interpreter's exit.
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(0, 64)
            if not read:
                break
            line += read
        self.outcome = line.decode().strip() or "killed"
        self._ended.set()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)


class Sender:
    """Sends what is new in the run folder, in the order of the files."""

    def __init__(self, settings: Dict[str, Any]) -> None:
        self._folder = Path(settings["folder"])
        self._table_every = settings["table_every"]
        tracker = settings["tracker"]
        self._tracker = TRACKERS[tracker]()
        self._place = Place(self._folder, tracker, self._tracker.settle_s, settings["waits"])
        place = self._place
        place.project = place.project or settings["project"]
        place.run_name = place.run_name or settings["run_name"]
        config = settings["config"]
        place.run = self._tracker.start(self._folder, place.project, place.run_name, place.run, config)
        place.write()
        self._metrics = GrowingFile(self._folder / "metrics.json")
        self._evaluations = GrowingFile(self._folder / "evals.jsonl")
        # Rows that were read and not sent yet.
        self._steps: List[Row] = []
        self._evaluated: List[Row] = []

    def send_new(self, is_complete: bool) -> None:
        """Sends all rows that were not sent. May raise whatever the package raises; then the rest is sent the next time."""
        place = self._place
        self._steps.extend(self._metrics.new_rows(is_complete))
        self._evaluated.extend(self._evaluations.new_rows(is_complete))
        while self._steps:
            row = self._steps[0]
            # Steps that a resumed run repeats were sent: the tracker keeps the first numbers.
            if row["step"] > place.step:
                self._tracker.log(row["step"], numbers(row))
                place.step = row["step"]
                place.settle()
            self._steps.pop(0)
        while self._evaluated:
            row = self._evaluated[0]
            found = place.new_evaluations(row["step"], numbers(row))
            if found:
                self._tracker.log(row["step"], found)
                place.evaluations.update(dict.fromkeys(found, row["step"]))
                place.settle()
            self._evaluated.pop(0)
        self._send_tables()
        place.settle()

    def _send_tables(self) -> None:
        """Sends the tables of the steps that have one. The rollouts of a step may be written after its numbers."""
        place = self._place
        every = self._table_every
        if every == 0:
            return
        for step in range(place.table_step // every * every + every, place.step + 1, every):
            rows = rollout_table(self._folder, step)
            if rows:
                self._tracker.table(step, rows)
            # Those of one step are written before the numbers of the next but one.
            if rows or step + 2 <= place.step:
                place.table_step = step

    def finish(self, outcome: str) -> None:
        """Sends the outcome of the run."""
        self._tracker.finish(outcome)
        self._place.write()


def follow(sender: Sender, end: RunEnd) -> None:
    """Sends until the run has ended and everything is sent."""
    pause = POLL_S
    attempts = 0
    while True:
        end.wait(pause)
        outcome = end.outcome
        try:
            sender.send_new(is_complete=outcome is not None)
            if outcome is not None:
                sender.finish(outcome)
                return
            pause = POLL_S
        except Exception:
            traceback.print_exc()
            attempts += outcome is not None
            if attempts == LAST_ATTEMPTS:
                raise
            pause = min(2 * pause, LONGEST_PAUSE_S)
            if outcome is not None:
                time.sleep(min(pause, 4.0))


def main(files: str) -> None:
    """Runs the process; `files` is the folder of its code and its settings, which is removed."""
    settings = json.loads(Path(files, "settings.json").read_text(encoding="utf-8"))
    shutil.rmtree(files, ignore_errors=True)
    end = RunEnd()
    try:
        sender = Sender(settings)
    except Busy:
        print("another process sends this run", flush=True)
        sys.exit(BUSY)
    follow(sender, end)
