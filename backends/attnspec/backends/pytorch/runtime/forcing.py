"""Forcing one path for all calls, so that tests and benchmarks reach every path."""

from collections.abc import Iterator
from contextlib import contextmanager

PATHS = ("llvm", "pointwise", "decode", "small", "plain", "pytorch", "flex")
"""Paths of additive and scaled dot-product attention, except ``triton``, which only CUDA has. ``flex`` is a path of
grouped heads on CUDA that, forced, also runs on the CPU."""

chosen: str | None = None
"""The forced path or None; cached plans read it without the overhead of calling `forced`."""


def forced() -> str | None:
    """Return the forced path; None if each call takes its cheapest path."""
    return chosen


@contextmanager
def forcing(path: str | None) -> Iterator[None]:
    """Force this path on all calls of the process that it serves; ValueError if unknown."""
    if path is not None and path not in PATHS:
        raise ValueError(f"path: expected one of {', '.join(PATHS)}; got {path!r}")
    global chosen
    former, chosen = chosen, path
    try:
        yield
    finally:
        chosen = former
