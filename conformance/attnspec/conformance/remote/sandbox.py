"""Processes that run a backend's code: their environment, and a bubblewrap sandbox where it works."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnspec.conformance.remote.environment import SAFE_PATH, own_folders
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.processes import MARK, end_all, mark

CHOICES = ("auto", "on", "off")
"""Values of ``--sandbox``."""

OF_JUDGE = ("ATTNSPEC_", "HYPOTHESIS_", "PYTEST_")
"""Prefixes of environment variables that a backend does not get."""

DEVICES = ("nvidia*", "dri", "kfd", "accel", "dxg")
"""Patterns of accelerators in /dev."""

PRIVATE = ("/tmp", "/var/tmp", "/run/user")
"""Folders that are empty in a sandbox. The last one has sockets of the user's session."""

MEMORY = "/dev/shm"
"""Folder for temporary files if the backend's own file is in /tmp, which is read-only then."""

CACHES = {"TRITON_CACHE_DIR": "triton", "NUMBA_CACHE_DIR": "numba"}
"""Variables that relocate caches which compilers must write; other caches at home stay readable."""

TRIAL_SECONDS = 10.0
"""Time limit of the trial whether bubblewrap works."""


class Launched(subprocess.Popen[Any]):
    """A backend's process; all descendants bear its mark. If ``sandboxed``, bubblewrap is the first process."""

    sandboxed = False
    mark = ""

    def end(self, *, adopted: bool = False) -> list[str]:
        """End the process and its descendants; return those left running. ``adopted`` as in :func:`end_all`."""
        left = end_all(self.pid, self.mark, adopted=adopted, sandboxed=self.sandboxed)
        self.wait()
        return left

    @property
    def ending(self) -> str:
        """Exit status or signal, for messages."""
        status = self.returncode
        if self.sandboxed and status > 128 and status - 128 in {*signal.Signals}:
            status = 128 - status  # bubblewrap exits with 128 + signal
        return f"with status {status}" if status >= 0 else f"by {_signal(-status)}"


def launch(module: str, *arguments: str, sandbox: bool, readable: Iterable[str] = (), **how: Any) -> Launched:
    """Start a module of attnspec that will run a backend, without the judge's environment variables.

    ``readable`` are paths that the sandbox must show.
    """
    variables = {name: x for name, x in os.environ.items() if not name.startswith(OF_JUDGE)}
    command = [sys.executable, "-m", module, *arguments]
    if sandbox:
        command = [*bubblewrap(readable), *command]
        own = MEMORY if _tmp_is_shared(readable) else PRIVATE[0]
        variables |= {"TMPDIR": own, **{name: f"{own}/{folder}" for name, folder in CACHES.items()}}
    environment = {**variables, **SAFE_PATH, MARK: mark()}
    process = Launched(command, start_new_session=True, env=environment, **how)
    process.sandboxed, process.mark = sandbox, environment[MARK]
    return process


def bubblewrap(readable: Iterable[str] = ()) -> list[str]:
    """Arguments that run a command under bubblewrap: read-only files, own processes, no network."""
    needed = {*_needed(readable)}
    hidden = [folder for folder in PRIVATE if Path(folder).is_dir() and folder not in needed]
    shown = sorted(path for path in needed if any(path.startswith(f"{folder}/") for folder in hidden))
    devices = sorted(str(path) for pattern in DEVICES for path in Path("/dev").glob(pattern))
    return [
        *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *(word for path in devices for word in ("--dev-bind", path, path)),
        *(word for folder in hidden for word in ("--tmpfs", folder)),
        *(word for path in shown for word in ("--ro-bind", path, path)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-net", "--die-with-parent", "--cap-drop", "ALL"),
        *("--chdir", str(Path.cwd()), "--"),
    ]


def _tmp_is_shared(readable: Iterable[str]) -> bool:
    return PRIVATE[0] in {*_needed(readable)}


def _needed(readable: Iterable[str]) -> Iterable[str]:
    """Folders of Python, attnspec and the backend, with and without resolved links."""
    own = (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent), str(Path.cwd()), *own_folders())
    for name in (*own, *sys.path, *readable):
        if name and (path := Path(name)).exists():
            folder = path if path.is_dir() else path.parent
            yield from (str(folder.absolute()), str(folder.resolve()))


@cache
def trouble() -> str | None:
    """Return why bubblewrap cannot be used here; None if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap (bwrap) is not installed"
    try:
        done = subprocess.run(
            [*bubblewrap(), sys.executable, "-S", "-c", ""],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap (bwrap) does not work here: {type(error).__name__}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"bubblewrap (bwrap) does not work here: {(said or ['no message'])[-1]}" if done.returncode else None


def resolved(choice: str, option: str = "sandbox") -> bool:
    """Return true for a sandbox; raise :class:`BackendError` if ``choice`` demands one and it cannot work."""
    if choice not in CHOICES:
        raise BackendError(f"{option}: expected one of {', '.join(CHOICES)}; got {choice!r}")
    if choice == "off":
        return False
    reason = trouble()
    if choice == "on" and reason is not None:
        raise BackendError(f"{option}: expected a sandbox; {reason}; 'off' judges without one")
    return reason is None


def files_of(name: str, path: Sequence[str] = ()) -> list[str]:
    """Return the paths that this backend may be imported from: its file, and module folders."""
    target = name.partition(":")[0]
    return [*([target] if target.endswith(".py") else []), *path]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
