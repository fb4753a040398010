"""What a tracker has been sent of a run, in `tracking/<tracker>.json` of the run folder.

A process that takes over from another one continues from there. The file never says that something was sent which was
not, so the worst that a killed process causes is a row that is sent twice, with the same numbers.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Dict, Optional


class Busy(Exception):
    """Another process sends this run to this tracker."""


class Place:
    """The tracker's id of the run, and the last step of each kind that was sent."""

    def __init__(self, folder: Path, tracker: str, settle_s: float, waits: bool) -> None:
        """`settle_s` are the seconds after which the tracker keeps what was sent even if this process is killed. Raises
        Busy if another process holds the place and this one does not wait for it."""
        self._path = folder / "tracking" / f"{tracker}.json"
        self._settle_s = settle_s
        self._path.parent.mkdir(exist_ok=True)
        # Held until the process ends.
        self._lock = (self._path.parent / f".{tracker}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Busy() from None
        except OSError as error:
            print(f"the file system has no locks: {error}", flush=True)
        self.run: Optional[str] = None
        self.project: Optional[str] = None
        self.run_name: Optional[str] = None
        self.step = 0
        self.evaluations: Dict[str, int] = {}
        self.table_step = 0
        self._unsettled: Optional[Dict[str, Any]] = None
        self._taken = 0.0
        self._written: Optional[Dict[str, Any]] = None
        try:
            self._restore(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass

    def _restore(self, kept: Dict[str, Any]) -> None:
        self.run = kept["run"]
        self.project = kept["project"]
        self.run_name = kept["run_name"]
        self.step = kept["step"]
        self.evaluations = kept["evaluations"]
        self.table_step = kept["table_step"]

    def new_evaluations(self, step: int, found: Dict[str, float]) -> Dict[str, float]:
        """Numbers of an evaluation that were not sent yet."""
        return {name: value for name, value in found.items() if step > self.evaluations.get(name, -1)}

    def settle(self) -> None:
        """Writes what was sent at least `settle_s` ago."""
        now = time.monotonic()
        if self._settle_s == 0.0:
            self.write()
        elif self._unsettled is None:
            self._unsettled, self._taken = self._state(), now
        elif now - self._taken >= self._settle_s:
            self._write(self._unsettled)
            self._unsettled, self._taken = self._state(), now

    def write(self) -> None:
        """Writes all that was sent: the tracker keeps it."""
        self._unsettled = None
        self._write(self._state())

    def _state(self) -> Dict[str, Any]:
        return {
            "run": self.run,
            "project": self.project,
            "run_name": self.run_name,
            "step": self.step,
            "evaluations": dict(self.evaluations),
            "table_step": self.table_step,
        }

    def _write(self, state: Dict[str, Any]) -> None:
        if state == self._written:
            return
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(state) + "\n", encoding="utf-8")
        os.replace(new, self._path)
        self._written = state
