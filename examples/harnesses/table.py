"""Which wrong attentions a harness accepts, and what ``judge`` says of them; and of honest kernels."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses import flash_attention, flashinfer_bench, gpu_mode, hugging_face, kernelbench
from examples.harnesses.harness import Call, Harness
from examples.harnesses.honest import HONEST, NotOffered
from examples.harnesses.wrong import WRONG

HARNESSES = {
    name: module.HARNESS
    for name, module in {
        "kernelbench": kernelbench,
        "flashinfer-bench": flashinfer_bench,
        "gpu-mode": gpu_mode,
        "hugging-face": hugging_face,
        "flash-attention": flash_attention,
    }.items()
}
"""By the names of the command line."""


@dataclass(frozen=True)
class Row:
    """One output: what it is of, its share of the operations of attention, whether the rule accepts it, the verdict."""

    name: str
    work: float
    accepted: bool
    verdict: Verdict


def wrong_rows(harness: Harness, call: Call) -> list[Row]:
    """Every wrong attention that these inputs can show, the cheapest first."""
    reference = harness.reference(call)
    rows = []
    for wrong in sorted(WRONG, key=lambda w: w.work(call)):
        if wrong.fits(call):
            output = wrong.output(call).to(call.query.dtype)
            verdict = harness.judged(output, call, None)
            rows.append(Row(wrong.name, wrong.work(call) / call.work, harness.accepts(output, reference), verdict))
    return rows


def honest_rows(harness: Harness, call: Call) -> Iterator[Row]:
    """Every honest kernel that is offered for these inputs."""
    reference, half = harness.reference(call), call.query.dtype != torch.float32
    for honest in HONEST:
        try:
            output = honest.output(call)
        except NotOffered:
            continue
        precision = f"{honest.precision}{str(call.query.dtype).removeprefix('torch.')}"
        verdict = harness.judged(output, call, precision if honest.precision and half else None)
        yield Row(honest.name, 1, harness.accepts(output, reference), verdict)


def factor(verdict: Verdict) -> str:
    """The largest error over its budget."""
    ratio = verdict.ratio if verdict.worst is None else verdict.worst.ratio
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}" if ratio < 1e6 else "∞"


def share(work: float) -> str:
    """Operations as a share of those of attention."""
    return "none" if not work else f"{work:.0%}" if 0.01 <= work < 0.995 else f"{work:.2%}"


def line(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    """The head of a Markdown table."""
    return [line(*cells), f"|{'---|' * len(cells)}"]
