"""Disk cache of compiled kernels, in the user's cache folder.

``ATTNSPEC_CACHE=off``, or another value in `OFF`, disables it; any other value is its folder. A file's name is a digest
of everything that determines the code: the sources of the kernels, the kernel and its parameters, LLVM and the
processor. Files are in a subfolder ``kernels`` that only the user may open (mode 0700), because their code is run. If
it cannot be written, or is open to others, nothing is cached; if the user named the folder, a warning says so.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

from attnspec.backends.pytorch.kernels.llvm.machine_code import processor

try:
    import platformdirs
except ImportError:
    # llvmlite was installed without it: code is cached only in a folder named by the variable.
    platformdirs = None  # type: ignore[assignment]

SWITCH = "ATTNSPEC_CACHE"
OFF = "off", "0", "no", "false", "none"
"""Values of `SWITCH` that disable the cache, in upper or lower case."""

KERNELS = Path(__file__).parents[1]
"""The package of all kernels."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class Code(NamedTuple):
    """An object file, and the name of the kernel in it."""

    name: str
    object_file: bytes


def cached_or_compiled(build: Callable[..., Any], parameters: object, compile_kernel: Callable[[], Code]) -> Code:
    """Cached code of a kernel, or the result of ``compile_kernel``, which is then cached."""
    folder = _folder()
    if folder is None or not _sources_are_loaded():
        return compile_kernel()
    try:
        path = folder / _key(build, parameters)
        cached = _read(path)
    except OSError:
        # A source, or a file in the folder, cannot be read.
        return compile_kernel()
    if cached is not None:
        return cached
    code = compile_kernel()
    if _sources_are_loaded():
        with suppress(OSError):  # the folder cannot be written
            _write(path, code)
    return code


def _folder() -> Path | None:
    """Folder of the cache; None if disabled, or if others could put code there."""
    setting = os.environ.get(SWITCH, "")
    if setting.lower() in OFF or (not setting and platformdirs is None):
        return None
    try:
        base = Path(setting).expanduser() if setting else platformdirs.user_cache_path("attnspec")
    except RuntimeError as error:  # no such user
        _warn(f"{setting!r}: {str(error).rstrip('.')}")
        return None
    folder = base / "kernels"
    defect = _defect(folder)
    if defect is None:
        return folder
    if setting:
        _warn(f"{str(folder)!r} {defect}")
    return None


def _defect(folder: Path) -> str | None:
    """Create a folder if missing; return the reason why it is unusable, or None if it is private."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        return f"cannot be created ({error.strerror})"
    # Windows has neither owners by number nor these bits; there a user's folder is closed to others anyway.
    if hasattr(os, "getuid"):
        if status.st_uid != os.getuid():
            return "belongs to another user"
        if status.st_mode & 0o077:
            return f"is open to other users (expected mode 0700, got {status.st_mode & 0o777:04o})"
    return None if os.access(folder, os.R_OK | os.X_OK) else "cannot be read"


@lru_cache(maxsize=8)
def _warn(problem: str) -> None:
    """Warn, once per problem, that nothing is cached in the named folder."""
    remedy = f"kernels are compiled in every process; name another folder, or set {SWITCH}=off"
    warnings.warn(f"{SWITCH}: {problem}: {remedy}", RuntimeWarning, stacklevel=2)


def _key(build: Callable[..., Any], parameters: object) -> str:
    key = hashlib.sha256(_environment().encode())
    key.update(f"\n{build.__module__}.{build.__qualname__}{parameters!r}\n".encode())
    source = Path(build.__code__.co_filename)
    if KERNELS not in source.parents:  # a kernel of benchmarks or tests
        key.update(source.read_bytes())
    return key.hexdigest()


_PATHS = tuple(sorted(KERNELS.rglob("*.py")))


def _digest_of_sources() -> str:
    """Digest of the sources of all kernels; empty if they cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in _PATHS:
            digest.update(path.relative_to(KERNELS).as_posix().encode() + b"\n")
            digest.update(path.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()


def _times() -> tuple[int, ...]:
    """Modification time of each source; empty if one is missing."""
    try:
        return tuple(path.stat().st_mtime_ns for path in _PATHS)
    except OSError:
        return ()


_TIMES_AT_IMPORT = _times()
SOURCES_AT_IMPORT = _digest_of_sources()
"""Digest of the sources when this module was imported."""


def _sources_are_loaded() -> bool:
    """Return whether no source has changed since this module's import.

    Kernel modules are imported later, one by one. After a change they may not be the sources of `SOURCES_AT_IMPORT`,
    under which their code would be cached.
    """
    return bool(SOURCES_AT_IMPORT) and _times() == _TIMES_AT_IMPORT


@lru_cache(maxsize=1)
def _environment() -> str:
    """Part of every key: the sources of all kernels, LLVM, and the processor."""
    cpu, features = processor()
    machine = cpu, llvm.get_default_triple(), features.flatten()
    return "\n".join((SOURCES_AT_IMPORT, llvmlite.__version__, str(llvm.llvm_version_info), *machine))


def _digest(path: Path, content: bytes) -> bytes:
    """Digest of a file's content and name, so that another kernel's code is not accepted."""
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()


def _read(path: Path) -> Code | None:
    """Code in a file; None if the file is missing, or its digest does not match."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if _digest(path, body) != digest:
        return None
    name, _, object_file = body.partition(b"\0")
    return Code(name.decode(), object_file)


def _write(path: Path, code: Code) -> None:
    """Write a file that other processes see whole or not at all."""
    content = code.name.encode() + b"\0" + code.object_file
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(_digest(path, content) + content)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
