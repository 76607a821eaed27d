"""The suite judges every forced path and adapter; ordinary calls reach few of them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="kernels need llvmlite")

from attnspec.backends.pytorch.runtime.forcing import PATHS
from attnspec.conformance import ConformanceSuite
from attnspec.conformance.laws import CHECKS

SDPA, ADDITIVE, GROUPS = "scaled_dot_product_attention", "additive_attention", "grouped_query_attention"
SERVED = {
    "llvm": (SDPA, ADDITIVE),
    "pointwise": (ADDITIVE,),
    "decode": (SDPA,),
    "small": (SDPA,),
    "plain": (SDPA, ADDITIVE),
    "pytorch": (SDPA, GROUPS),
    "flex": (GROUPS, "variable_length_attention", "paged_attention"),
}
"""Operations that have a path of this name; others would take what costs least, as the backend itself does."""

NUMBERS = ("operation.oracle", "operation.gradient")
"""Laws by which the other dtypes are judged: their kernels differ in the numbers, not in what they do with arrays."""


def laws_of(*chapters: str) -> tuple[str, ...]:
    """The laws of chapters that ``quick`` runs; a law that is named runs in any profile."""
    chosen = (check.law for checks in CHECKS.values() for check in checks if not check.slow)
    return tuple(dict.fromkeys(law.id for law in chosen if law.chapter in chapters))


FORWARD = laws_of("operation", "masking", "semantics")
KERNELS = (*FORWARD, *laws_of("sizes", "storage", "training"))
"""Laws that a path alone can break. Of those that say what an operation means, the oracle sees every breach."""


def suite(backend: str, operations: tuple[str, ...], dtypes: tuple[str, ...], laws: tuple[str, ...]) -> type:
    """A suite in this process, where attnspec's own backend has nobody to mislead."""
    chosen = {"operations": operations, "dtypes": dtypes, "laws": laws, "in_process": True}
    return type("TestHere", (ConformanceSuite,), {"__module__": __name__, "backend": backend, **chosen})


OTHERS = ("float64", "bfloat16", "float16")
for _path in PATHS:
    _backend, _served = f"attnspec.backends.pytorch.runtime.paths:{_path}", SERVED[_path]
    # on the CPU gradients never go by flex
    globals()[f"TestBy_{_path}"] = suite(_backend, _served, ("float32",), FORWARD if _path == "flex" else KERNELS)
    globals()[f"TestNumbersBy_{_path}"] = suite(_backend, _served, OTHERS, NUMBERS)

MODULES = (ADDITIVE, "multi_head_attention", "lstm_cell", "encoder_layer")
for _adapter, _operations in {"stepping": ("bahdanau_context",), "modules": MODULES}.items():
    _backend = str(Path(__file__).with_name(f"{_adapter}_pytorch.py"))
    globals()[f"TestOf_{_adapter}"] = suite(_backend, _operations, ("float32",), FORWARD)
    globals()[f"TestNumbersOf_{_adapter}"] = suite(_backend, _operations, OTHERS, NUMBERS)


@pytest.mark.parametrize(
    ("adapter", "verdict", "operations", "dtypes"),
    [
        ("threaded", "pytorch on threads conforms", (SDPA, ADDITIVE), ("float32",)),
        ("multiplying", "pytorch by products of its own conforms", (ADDITIVE,), ()),
    ],
)
def test_the_suite_acquits_the_adapter(
    adapter: str, verdict: str, operations: tuple[str, ...], dtypes: tuple[str, ...]
) -> None:
    """Judge in another process, for these adapters change the kernels of their process.

    Threads divide work alike in every dtype; products of matrices are others in each.
    """
    laws = (*laws_of("operation", "sizes"), "training.independent-of-other-passes")
    chosen = {"--operation": operations, "--law": laws, "--dtype": dtypes}
    selection = [word for option, values in chosen.items() for value in values for word in (option, value)]
    backend = str(Path(__file__).with_name(f"{adapter}_pytorch.py"))
    command = (sys.executable, "-m", "attnspec.conformance.cli", "check", backend, "--in-process", "--workers", "1")
    done = subprocess.run([*command, *selection], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert verdict in done.stdout
