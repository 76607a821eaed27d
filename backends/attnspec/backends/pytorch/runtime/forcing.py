"""One path for all calls, in place of the one that costs least: so that tests and benchmarks see each of them."""

from collections.abc import Iterator
from contextlib import contextmanager

PATHS = ("llvm", "direct", "step", "few", "plain", "pytorch", "flex")
"""What may be forced: the paths of additive attention but for ``triton``, those of scaled dot-product attention, and of
those that groups of heads take on CUDA the one that the CPU has too."""

chosen: str | None = None
"""What `forced` returns, for callers on which another frame of Python would weigh."""


def forced() -> str | None:
    """The path that all calls take where it serves them; None where each takes what costs least."""
    return chosen


@contextmanager
def forcing(path: str | None) -> Iterator[None]:
    """All calls of the process take this path where it serves them, until the context ends; ValueError for others."""
    if path is not None and path not in PATHS:
        raise ValueError(f"path: expected one of {', '.join(PATHS)}; got {path!r}")
    global chosen
    before, chosen = chosen, path
    try:
        yield
    finally:
        chosen = before
