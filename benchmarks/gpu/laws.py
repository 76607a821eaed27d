"""Stages 3 and 4: the conformance suite on the device, ``attnspec check``, with one check per operation and dtype."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from attnspec.spec.contract.operation import OPERATIONS
from benchmarks.gpu.check import NOT_REACHED, Check, Context, Outcome, outcome

BACKEND = "attnspec.backends.pytorch"
ATTENTION = (
    "additive_scores", "additive_attention", "bahdanau_context", "scaled_dot_scores", "scaled_dot_product_attention",
    "grouped_query_attention",
)  # fmt: skip
HANG_SECONDS = 120
"""A first call may compile for longer than the 20 seconds after which a check counts as hung elsewhere."""

MARGIN = 15
"""Seconds of a stage that are left for the start of the suite and its report."""


def of_attention(context: Context) -> list[Check]:
    """Checks of additive and scaled dot-product attention, in every dtype with a kernel."""
    return _checks(context, ATTENTION, ("float32",) if context.dry else ("float32", "bfloat16", "float16"))


def of_all(context: Context) -> list[Check]:
    """Checks of all operations, in float32 and bfloat16."""
    names = [operation.name for operation in OPERATIONS.values() if not operation.reference_only]
    return _checks(context, names[: context.size(len(names), 4)], ("float32", "bfloat16"))


def _checks(context: Context, operations: Sequence[str], dtypes: Sequence[str]) -> list[Check]:
    seconds = context.seconds / len(dtypes) - MARGIN
    reports = {dtype: cache(partial(_report, context, operations, dtype, seconds)) for dtype in dtypes}
    return [
        Check(f"{operation}, {dtype}", partial(_outcome, reports[dtype], operation))
        for dtype in dtypes
        for operation in operations
    ]


def _report(context: Context, operations: Sequence[str], dtype: str, seconds: float) -> dict[str, Any]:
    """Judge operations in one run of ``attnspec check``, outside of this process; return its report."""
    options = {
        "--device": "cpu" if context.dry else context.device, "--dtype": dtype,
        "--time-limit": f"{seconds:g}", "--hang-after": f"{HANG_SECONDS}",
        "--sandbox": "off",  # a sandbox hides the device
    }  # fmt: skip
    if context.dry:
        options["--law"] = "operation.oracle"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        command = [sys.executable, "-m", "attnspec", "check", BACKEND, "--isolated", "--json", str(file)]
        command += [x for option in options.items() for x in option]
        command += [x for name in operations for x in ("--operation", name)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not file.exists():
            raise RuntimeError(f"attnspec check: {' '.join(done.stderr.split()[-40:])}")
        report: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return report


def _outcome(report: Callable[[], dict[str, Any]], operation: str) -> Outcome:
    """Outcome of all laws of an operation."""
    results = [r for r in report()["results"] if r["operation"] == operation]
    judged = [r for r in results if r["status"] in ("passed", "failed")]
    failed = [r for r in results if r["status"] in ("failed", "lost")]
    if not judged and not failed:
        return Outcome(NOT_REACHED, remark=report()["reason"] or "the suite has no verdict")
    used = max((r["error_ratio"] for r in judged if r["error_ratio"] is not None), default=None)
    remark = f"{len(judged)} laws" if not failed else f"{len(failed)} of {len(results)} laws: " + "; ".join(
        f"{r['law']}: {' '.join((r['message'] or r['reason'] or '').split())[:120]}" for r in failed[:3]
    )  # fmt: skip
    return outcome(not failed, used, remark=remark)
