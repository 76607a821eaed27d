"""What the suite does not meet in the backend as it is, it judges: every path by force, and adapters."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="kernels need llvmlite")

from attnspec.backends.pytorch.runtime.forcing import PATHS
from attnspec.conformance import ConformanceSuite
from attnspec.spec import LAWS

SDPA, ADDITIVE, GROUPS = "scaled_dot_product_attention", "additive_attention", "grouped_query_attention"
SERVED = {
    "llvm": (SDPA, ADDITIVE),
    "direct": (ADDITIVE,),
    "step": (SDPA,),
    "few": (SDPA,),
    "plain": (SDPA, ADDITIVE),
    "pytorch": (SDPA, GROUPS),
    "flex": (GROUPS, "variable_length_attention", "paged_attention"),
}
"""Operations that have a path of this name; others would take what costs least, as the backend itself does."""

NUMBERS = ("operation.oracle", "operation.gradient")
"""Laws by which the other dtypes are judged: their kernels differ in the numbers, not in what they do with arrays."""


def laws_of(*chapters: str) -> tuple[str, ...]:
    return tuple(law for law in LAWS if law.split(".")[0] in chapters)


FORWARD = laws_of("operation", "masking", "semantics")
KERNELS = (*FORWARD, *laws_of("sizes", "storage", "training"))
"""Laws that a path alone can break. Of those that say what an operation means, the oracle sees every breach."""


def suite(path: str, dtypes: tuple[str, ...], laws: tuple[str, ...]) -> type:
    """A suite in this process, where attnspec's own backend has nobody to mislead."""
    chosen = {"operations": SERVED[path], "dtypes": dtypes, "laws": laws, "in_process": True}
    backend = f"attnspec.backends.pytorch.runtime.paths:{path}"
    return type("TestOnPath", (ConformanceSuite,), {"__module__": __name__, "backend": backend, **chosen})


for _path in PATHS:
    # on the CPU gradients never go by flex
    _laws = FORWARD if _path == "flex" else KERNELS
    globals()[f"TestBy_{_path}"] = suite(_path, ("float32",), _laws)
    globals()[f"TestNumbersBy_{_path}"] = suite(_path, ("float64", "bfloat16", "float16"), NUMBERS)


@pytest.mark.parametrize(
    ("adapter", "verdict", "operations"),
    [
        ("threaded", "pytorch on threads conforms", (SDPA, ADDITIVE)),
        ("stepping", "pytorch in decoding steps conforms", ("bahdanau_context",)),
        ("modules", "pytorch by modules conforms", (ADDITIVE, "multi_head_attention", "lstm_cell", "encoder_layer")),
        ("multiplying", "pytorch by products of its own conforms", (ADDITIVE,)),
    ],
)
def test_the_suite_acquits_the_adapter(adapter: str, verdict: str, operations: tuple[str, ...]) -> None:
    """In a process of its own, for adapters change what the kernels are.

    Other laws ask for what the adapters share with the backend.
    """
    laws = (*laws_of("operation", "masking", "sizes"), "training.repeatable")
    chosen = [*(("--operation", name) for name in operations), *(("--law", law) for law in laws)]
    selection = ("--profile", "quick", "--in-process", "--workers", "1", *(word for pair in chosen for word in pair))
    backend = str(Path(__file__).with_name(f"{adapter}_pytorch.py"))
    command = (sys.executable, "-m", "attnspec.conformance.cli", "check", backend, *selection)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert verdict in done.stdout
