"""Files that a backend without a sandbox could change to falsify its verdict."""

import compileall
import importlib.util
import site
import sys
from collections.abc import Iterator
from pathlib import Path

from attnspec.conformance.remote.environment import own_folders

ALWAYS_IMPORTED = {"attnspec", "sitecustomize", "usercustomize", "hypothesis", "pytest", "_pytest", "xdist", "execnet"}
"""Packages that a restarted judge imports, even if this process does not."""


class JudgeFiles:
    """The initial state of all files that a judge loads, now or when restarted."""

    def __init__(self) -> None:
        # Compiled now: a compiled file that appears later can only come from the backend.
        for folder in own_folders():
            compileall.compile_dir(folder, quiet=2)
        self._imported = {name.partition(".")[0] for name in sys.modules} | ALWAYS_IMPORTED | sys.stdlib_module_names
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._loaded = {Path(file) for file in files if isinstance(file, str)}
        self._before = self._stamps()

    def changed(self) -> list[str]:
        """Return the files changed, removed or added since the run began."""
        before, now = self._before, self._stamps()
        return sorted(str(path) for path in {*before, *now} if before.get(path) != now.get(path))

    def _stamps(self) -> dict[Path, tuple[int, ...]]:
        paths = {*self._loaded, *_code(), *self._run_at_start()}
        return {path: stamp for path in paths if (stamp := _stamp(path)) is not None}

    def _run_at_start(self) -> Iterator[Path]:
        """Yield Python's settings, ``.pth`` files, and every path named like an imported module."""
        yield Path(sys.prefix, "pyvenv.cfg")
        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        # Judges run with a safe path, which omits its first entry: the script's or the current folder.
        folders = sys.path if sys.flags.safe_path else sys.path[1:]
        for folder in {Path(f) for f in [*site.getsitepackages(), *user, *folders]}:
            if folder.is_dir():
                for path in folder.iterdir():
                    if path.suffix == ".pth" or path.name.partition(".")[0] in self._imported:
                        yield path


def _code() -> Iterator[Path]:
    """Yield all files of attnspec, and the compiled files that Python would load."""
    for folder in map(Path, own_folders()):
        for path in folder.rglob("*"):
            if "__pycache__" not in path.parts and path.is_file():
                yield path
                if path.suffix == ".py":
                    yield Path(importlib.util.cache_from_source(str(path)))


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a file's inode, size and times, the last of which only root can set."""
    try:
        state = path.stat()
    except OSError:
        return None
    if path.is_dir():
        return (state.st_ino,)
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
