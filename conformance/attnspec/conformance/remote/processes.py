"""Processes of the system: time used, and the end of all that a backend started."""

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

HAS_PROC = PROC.joinpath("self", "stat").exists()
"""True if the system describes processes in ``/proc``."""

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

MARK = "ATTNSPEC_PROCESS"
"""Environment variable that marks all descendants of a backend's process."""

SUBREAPER, DEATH_SIGNAL, DUMPABLE = 36, 1, 4
"""Linux's ``PR_SET_CHILD_SUBREAPER``, ``PR_SET_PDEATHSIG`` and ``PR_SET_DUMPABLE``."""

SANDBOX_PROCESSES = (1, 2)
"""Process numbers, within a sandbox, of bubblewrap and of the process that it starts."""

MAX_ROUNDS, PAUSE = 40, 0.05
"""Most rounds of ending processes, and seconds between two."""


def new_mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(8)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process, where that is possible."""
    _prctl(SUBREAPER, 1)


def die_with_parent() -> None:
    """End this process when its parent ends, where that is possible."""
    _prctl(DEATH_SIGNAL, signal.SIGKILL)


def close_memory() -> None:
    """Deny the user's other processes access to this one's memory, environment and open files."""
    _prctl(DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Process(NamedTuple):
    """A process; ``state`` as in ``/proc``: R runs or could, D waits for a device, S sleeps, T stopped, Z or X dead."""

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
        """True if the process is dead, and only its parent has yet to collect it."""
        return self.state in "ZX"


def processes() -> Iterator[Process]:
    """Yield all processes that the system lists."""
    for folder in PROC.iterdir() if HAS_PROC else ():
        if folder.name.isdigit() and (process := process_of(int(folder.name))) is not None:
            yield process


def process_of(number: int) -> Process | None:
    """Return the process of this number, or None."""
    return _read(PROC / str(number) / "stat")


def _read(path: Path) -> Process | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain parentheses. Of the fields, 7 and 8 are user and system time in ticks.
    before, _, after = text.rpartition(")")
    number, _, name = before.partition(" (")
    state, parent, group, session, *fields = after.split()
    return Process(
        int(number), name, state, int(parent), int(group), int(session), (int(fields[7]) + int(fields[8])) / TICKS
    )


def usage(leader: int) -> tuple[float, bool]:
    """Return a process group's processor seconds, and whether any of its threads wants more."""
    seconds, wants = 0.0, False
    for process in processes():
        if leader in (process.number, process.group, process.session):
            seconds += process.seconds
            wants = wants or any(t.state in "RD" for t in _threads(process.number))
    return seconds, wants


def _threads(number: int) -> Iterator[Process]:
    try:
        paths = [*(PROC / str(number) / "task").iterdir()]
    except OSError:
        return
    yield from (thread for path in paths if (thread := _read(path / "stat")) is not None)


def end_all(
    leader: int, mark: str, *, ends_children: bool = False, sandboxed: bool = False, has_program: bool = False
) -> list[str]:
    """End a group's leader and the processes that it left; return their titles.

    These are its group, its session, and all processes with its mark; with ``ends_children``, all children of this
    process, too. With ``sandboxed`` the leader is bubblewrap, whose two processes inside, its own and the backend's,
    end with it and were not left. With ``has_program`` neither was the leader's child, a program that is the backend.
    """
    own, marked = os.getpid(), f"{MARK}={mark}".encode()

    def is_left(process: Process) -> bool:
        inside = leader in (process.group, process.session) or (ends_children and process.parent == own)
        if sandboxed and _number_within(process.number) in SANDBOX_PROCESSES:
            return False
        return process.number != leader and (inside or marked in _environment(process.number))

    def is_program(process: Process) -> bool:
        return process.parent == leader or (sandboxed and _number_within(process.parent) in SANDBOX_PROCESSES)

    # The group is killed at once: a process that keeps forking would outrun single kills.
    left = _living(is_left)
    spared = {process.number for process in left if has_program and is_program(process)}
    titles = {process.number: process.title for process in left}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    # Its children become children of this process only after it has ended.
    _await_end(leader)
    titles |= _kill_all(is_left)
    return [title for number, title in titles.items() if number not in spared]


def _await_end(number: int) -> None:
    for _ in range(MAX_ROUNDS):
        process = process_of(number)
        if process is None or process.ended:
            break
        time.sleep(PAUSE)


def _number_within(number: int) -> int | None:
    """Return a process's number within its sandbox; None outside of one."""
    try:
        lines = (PROC / str(number) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return int(numbers[-1]) if len(numbers) > 1 else None


def children() -> set[int]:
    """Return the numbers of this process's children."""
    return {process.number for process in processes() if process.parent == os.getpid()}


def end_children(spared: set[int]) -> list[str]:
    """End all children of this process except ``spared``; return their titles."""
    return [*_kill_all(lambda process: process.parent == os.getpid() and process.number not in spared).values()]


def _living(is_left: Callable[[Process], bool]) -> list[Process]:
    """Return the live processes that ``is_left`` accepts, without this one."""
    return [x for x in processes() if x.number != os.getpid() and not x.ended and is_left(x)]


def _kill_all(is_left: Callable[[Process], bool]) -> dict[int, str]:
    """Kill processes until none is left; return their titles by number."""
    titles: dict[int, str] = {}
    for _ in range(MAX_ROUNDS):
        remaining = _living(is_left)
        for process in remaining:
            titles[process.number] = process.title
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.number, signal.SIGKILL)
            if process.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(process.number, 0)
        if not remaining:
            break
        time.sleep(PAUSE)
    return titles


def _environment(number: int) -> list[bytes]:
    try:
        return (PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
