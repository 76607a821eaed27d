"""What becomes of a backend that crashes or hangs: its law fails by name, and the other laws are still judged.

A worker process leaves a breadcrumb, law and input, before every check. Where the process dies, or a check takes too
long and the watchdog ends the process, the controller reads the crumb, remembers the law as failed and has the case run
again without it.
"""

import faulthandler
import json
import mmap
import os
import time
from pathlib import Path
from typing import Any

from attnspec.conformance.judging.results import Result, Status

SIZE = 4096
HANG_AFTER = 20.0
"""Seconds that a single check may take by default."""

STOP_AFTER = 3
"""Crashes and hangs after which an operation is given up."""


class Watch:
    """The worker's side: called with a law and its input before every check."""

    def __init__(self, folder: Path, case: str, hang_after: float) -> None:
        self.hang_after = hang_after
        path = folder / f"{case}.crumb"
        path.write_bytes(bytes(SIZE))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), SIZE)
        self._silent = Path(os.devnull).open("w")  # noqa: SIM115 - faulthandler needs a file that stays open

    def __call__(self, law: str, given: Any) -> None:
        """Leave the crumb and start the clock anew."""
        crumb = json.dumps({"law": law, "at": time.time(), "input": str(given)[: SIZE // 2]})[: SIZE - 1].encode()
        self._map[: len(crumb) + 1] = crumb + b"\0"
        faulthandler.dump_traceback_later(self.hang_after, exit=True, file=self._silent)

    def close(self) -> None:
        """Stop the clock."""
        faulthandler.cancel_dump_traceback_later()
        self._map.close()
        self._file.close()
        self._silent.close()


class Casualties:
    """The controller's side, and what workers learn from it: laws that crashed or hung, by case."""

    def __init__(self, folder: Path, hang_after: float) -> None:
        self.folder, self.hang_after = folder, hang_after

    def record(self, operation: str, dtype: str) -> Result | None:
        """Remember the law at which the process of a case died; None if it died before any check."""
        case = f"{operation}-{dtype}"
        raw = (self.folder / f"{case}.crumb").read_bytes() if (self.folder / f"{case}.crumb").exists() else b""
        text = raw.split(b"\0", 1)[0].decode(errors="replace")
        if not text:
            return None
        crumb = json.loads(text)
        hung = time.time() - crumb["at"] >= 0.9 * self.hang_after
        what = f"did not answer within {self.hang_after:g} s" if hung else "ended the process"
        known = self.known(operation, dtype)
        result = Result(
            operation,
            crumb["law"],
            dtype,
            Status.FAILED,
            "hung" if hung else "crashed",
            f"the backend {what} at the input {crumb['input']}",
        )
        if result.law in known:
            return None
        self._known_path(case).write_text(json.dumps([r.as_json() for r in (*known.values(), result)]))
        (self.folder / f"{case}.crumb").write_bytes(bytes(SIZE))
        with (self.folder / f"{operation}.casualties").open("a") as f:
            f.write(f"{result.reason}\n")
        return result

    def known(self, operation: str, dtype: str) -> dict[str, Result]:
        """The laws of a case that crashed or hung before, with their verdicts."""
        path = self._known_path(f"{operation}-{dtype}")
        if not path.exists():
            return {}
        return {r.law: r for r in map(Result.from_json, json.loads(path.read_text()))}

    def stopped(self, operation: str) -> str | None:
        """Why an operation was given up, ``crashed`` or ``hung``; None if it was not."""
        path = self.folder / f"{operation}.casualties"
        reasons = path.read_text().split() if path.exists() else []
        return reasons[-1] if len(reasons) >= STOP_AFTER else None

    def _known_path(self, case: str) -> Path:
        return self.folder / f"{case}.known.json"
