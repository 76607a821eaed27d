"""What the suite does not meet in the backend as it is, it judges in adapters: threads, caches of keys, modules."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="kernels need llvmlite")

from attnspec.backends.pytorch.runtime.forcing import PATHS

ATTENTION = ("scaled_dot_product_attention", "additive_attention")
GROUPS = ("grouped_query_attention", "variable_length_attention", "paged_attention")
MODULES = ("additive_attention", "multi_head_attention", "lstm_cell", "encoder_layer")


@pytest.mark.parametrize(
    ("adapter", "verdict", "operations"),
    [
        ("threaded", "pytorch on threads conforms", ATTENTION),
        ("stepping", "pytorch in decoding steps conforms", ("bahdanau_context",)),
        ("modules", "pytorch by modules conforms", MODULES),
        ("multiplying", "pytorch by products of its own conforms", ("additive_attention",)),
    ],
)
def test_the_suite_acquits_the_adapter(adapter: str, verdict: str, operations: tuple[str, ...]) -> None:
    check(str(Path(__file__).parent / f"{adapter}_pytorch.py"), verdict, operations)


@pytest.mark.parametrize("path", PATHS)
def test_the_suite_acquits_every_path(path: str) -> None:
    """The path that costs least is judged as the backend itself."""
    check(
        f"attnspec.backends.pytorch.runtime.paths:{path}",
        f"pytorch by {path} conforms",
        GROUPS if path == "flex" else (*ATTENTION, GROUPS[0]) if path == "pytorch" else ATTENTION,
    )


def check(backend: str, verdict: str, operations: tuple[str, ...]) -> None:
    selection = ("--profile", "quick", *(argument for name in operations for argument in ("--operation", name)))
    command = (sys.executable, "-m", "attnspec.conformance.cli", "check", backend, *selection)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert verdict in done.stdout
