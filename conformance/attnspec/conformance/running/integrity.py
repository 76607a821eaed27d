"""Files that a backend without a sandbox could change: the judge's code, and code that Python runs at its start."""

import importlib.util
import site
import sys
from collections.abc import Iterator
from pathlib import Path

from attnspec.conformance.remote.environment import own_folders

Stamps = dict[Path, tuple[int, ...]]
"""Inode, size and times of files. Only root can set the time of the last change."""

AT_START = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports whenever it starts."""


def stamps() -> Stamps:
    """The files as they are now. A compiled file counts only while Python would use it."""
    return {path: stamp for path in {*_code(), *_run_at_start()} if (stamp := _stamp(path)) is not None}


def changed(before: Stamps) -> list[str]:
    """The files that were changed, removed or added since."""
    now = {path: _stamp(path) for path in {*before, *_run_at_start()}}
    return sorted(str(path) for path, stamp in now.items() if stamp != before.get(path))


def _code() -> Iterator[Path]:
    for folder in map(Path, own_folders()):
        for source in folder.rglob("*.py"):
            yield source
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if _is_current(compiled, source):
                yield compiled


def _is_current(compiled: Path, source: Path) -> bool:
    try:
        header, state = compiled.open("rb").read(16), source.stat()
    except OSError:
        return False
    time, size = (int.from_bytes(header[i : i + 4], "little") for i in (8, 12))
    return (time, size) == (int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF)


def _run_at_start() -> Iterator[Path]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for folder in map(Path, [*site.getsitepackages(), *user]):
        yield from folder.glob("*.pth")
    yield from (path for folder in sys.path for name in AT_START if (path := Path(folder, name)).exists())


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
