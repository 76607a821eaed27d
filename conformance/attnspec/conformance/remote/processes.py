"""Processes of the system: time used, processes left running, and how to end them."""

import ctypes
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from attnspec.conformance.judging.foreign_calls import printable

PROC = Path("/proc")

KNOWN = PROC.joinpath("self", "stat").exists()
"""True if ``/proc`` describes processes."""

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

MARK = "ATTNSPEC_PROCESS"
"""Environment variable that marks all descendants of a backend's process."""

SUBREAPER, DEATH_SIGNAL, DUMPABLE = 36, 1, 4
"""Linux's ``PR_SET_CHILD_SUBREAPER``, ``PR_SET_PDEATHSIG`` and ``PR_SET_DUMPABLE``."""

FIRST = (1, 2)
"""Process numbers within a sandbox of bubblewrap's own process and the one that it starts."""

ROUNDS, PAUSE = 40, 0.05
"""Largest number of checks for remaining processes, and seconds between two."""


def mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(8)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, where that is possible."""
    _prctl(SUBREAPER, 1)


def die_with_parent() -> None:
    """End this process when its parent ends, where that is possible."""
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def close_memory() -> None:
    """Deny other processes of the user access to this one's memory, environment and files; root keeps it."""
    _prctl(DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Process(NamedTuple):
    """A process; ``state`` is R if it runs or waits for a processor, S if it sleeps."""

    number: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    seconds: float

    @property
    def title(self) -> str:
        """The process's name in messages."""
        return f"{printable(self.name)} (process {self.number})"

    @property
    def ended(self) -> bool:
        """True if the process is dead and only waits for its parent to collect it."""
        return self.state in "ZX"


def processes() -> Iterator[Process]:
    """Yield all processes, as far as the system lists them."""
    for folder in PROC.iterdir() if KNOWN else ():
        if folder.name.isdigit() and (found := process(int(folder.name))) is not None:
            yield found


def process(number: int) -> Process | None:
    """Return the process of this number, or None."""
    return _read(PROC / str(number) / "stat")


def _read(path: Path) -> Process | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    number, _, name = before.partition(" (")
    state, parent, group, session, *rest = after.split()
    return Process(
        int(number), name, state, int(parent), int(group), int(session), (int(rest[7]) + int(rest[8])) / TICKS
    )


def usage(leader: int) -> tuple[float, bool]:
    """Return a process group's processor seconds, and whether any of its threads wants more."""
    seconds, wants = 0.0, False
    for one in processes():
        if leader in (one.number, one.group, one.session):
            seconds += one.seconds
            wants = wants or any(t.state in "RD" for t in _threads(one.number))
    return seconds, wants


def _threads(number: int) -> Iterator[Process]:
    try:
        paths = [*(PROC / str(number) / "task").iterdir()]
    except OSError:
        return
    yield from (found for path in paths if (found := _read(path / "stat")) is not None)


def end_all(leader: int, word: str, *, adopted: bool = False, sandboxed: bool = False) -> list[str]:
    """End a process group and all processes with its mark; return their titles without the leader's.

    With ``adopted`` this process has no other children: all of them are ended too. With ``sandboxed`` the leader is
    bubblewrap; its own process within and the one that it was asked to start are not listed.
    """
    own, marked = os.getpid(), f"{MARK}={word}".encode()

    def is_left(one: Process) -> bool:
        inside = leader in (one.group, one.session) or (adopted and one.parent == own)
        if sandboxed and _number_within(one.number) in FIRST:
            return False
        return one.number != leader and (inside or marked in _environment(one.number))

    # The group is killed as a whole: a process that keeps forking could outrun one kill at a time.
    found = {one.number: one.title for one in _found(is_left)}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    # Its children become children of this process only after it has ended.
    _await_end(leader)
    return [*(found | _end(is_left)).values()]


def _await_end(number: int) -> None:
    """Wait a while until a killed process has ended."""
    for _ in range(ROUNDS):
        one = process(number)
        if one is None or one.ended:
            break
        time.sleep(PAUSE)


def _number_within(number: int) -> int | None:
    """Return a process's number in its own process namespace; None if it shares this one's."""
    try:
        lines = (PROC / str(number) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return int(numbers[-1]) if len(numbers) > 1 else None


def children() -> set[int]:
    """Return the numbers of this process's children."""
    return {one.number for one in processes() if one.parent == os.getpid()}


def end_children(but: set[int]) -> list[str]:
    """End all children of this process except ``but``, including new ones; return their titles."""
    return [*_end(lambda one: one.parent == os.getpid() and one.number not in but).values()]


def _found(is_left: Callable[[Process], bool]) -> list[Process]:
    """Return the live processes that ``is_left`` accepts, without this one."""
    return [x for x in processes() if x.number != os.getpid() and not x.ended and is_left(x)]


def _end(is_left: Callable[[Process], bool]) -> dict[int, str]:
    """Kill processes until none is left; return their titles by number."""
    found: dict[int, str] = {}
    for _ in range(ROUNDS):
        left = _found(is_left)
        for one in left:
            found[one.number] = one.title
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one.number, signal.SIGKILL)
            if one.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(one.number, 0)
        if not left:
            break
        time.sleep(PAUSE)
    return found


def _environment(number: int) -> list[bytes]:
    try:
        return (PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
