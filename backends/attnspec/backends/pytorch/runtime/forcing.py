"""Forcing of one path for all calls, for tests and benchmarks of every path."""

from collections.abc import Iterator
from contextlib import contextmanager

PATHS = ("llvm", "direct", "step", "few", "plain", "pytorch", "flex")
"""Paths that may be forced: those of additive attention except ``triton``, and those of scaled dot-product attention.
``flex`` is a path of grouped heads on CUDA that also runs on the CPU."""

chosen: str | None = None
"""The forced path, for callers that avoid the overhead of calling `forced`."""


def forced() -> str | None:
    """The path of all calls that it supports; None if each call uses the cheapest."""
    return chosen


@contextmanager
def forcing(path: str | None) -> Iterator[None]:
    """Force this path on all calls of the process that it supports; ValueError for unknown paths."""
    if path is not None and path not in PATHS:
        raise ValueError(f"path: expected one of {', '.join(PATHS)}; got {path!r}")
    global chosen
    before, chosen = chosen, path
    try:
        yield
    finally:
        chosen = before
