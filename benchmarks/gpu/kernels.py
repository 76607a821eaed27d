"""Stages 0 and 1: every kernel against the formula, at a small size and at borders of tiles."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.check import NOT_TRIED, Check, Context, Outcome, outcome
from benchmarks.gpu.problems import (
    Problem,
    additive_attention,
    additive_scores,
    decoding_step,
    dot_product_attention,
    grouped_attention,
    packed_attention,
    paged_attention,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KERNELS: dict[str, Callable[[Context, torch.dtype], Problem]] = {
    "additive attention": additive_attention,
    "additive attention, masked and causal": partial(additive_attention, masked=True, causal=True),
    "additive scores": additive_scores,
    "decoding step": decoding_step,
    "decoding step, masked": partial(decoding_step, masked=True),
    "dot-product attention": dot_product_attention,
    "dot-product attention, causal": partial(dot_product_attention, causal=True),
    "dot-product attention, masked": partial(dot_product_attention, masked=True),
    "grouped attention": grouped_attention,
    "grouped attention, gradients": partial(grouped_attention, gradients=True),
    "grouped attention, window and lengths": partial(grouped_attention, window=(8, 0), lengths=True),
    "packed attention": packed_attention,
    "packed attention, gradients": partial(packed_attention, gradients=True),
    "paged attention": paged_attention,
}
TILES = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Sizes beside multiples of the widths of tiles: 16, 64, 128 and 256."""

WIDE_TILES, NARROW_TILES = TILES[-3:], TILES[:9]
"""Sizes beside 256, and up to 128."""

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
"""Tools of compute-sanitizer; two of them find missing barriers."""

SECONDS_OF_TOOL = 100


def smoke_calls(context: Context) -> list[Check]:
    """Checks of every kernel at a small size, in every dtype."""
    return [
        _check(f"{name}, {short}", partial(kernel, context, dtype), context)
        for name, kernel in KERNELS.items()
        for short, dtype in _dtypes(context)
    ]


def borders(context: Context) -> list[Check]:
    """Checks at borders of tiles, and under ``compute-sanitizer``."""
    return [
        *(_check(name, make, context) for name, make in _problems(context)),
        *(Check(f"compute-sanitizer {tool}", partial(_sanitized, tool), needs_gpu=True) for tool in TOOLS),
    ]


def _dtypes(context: Context) -> list[tuple[str, torch.dtype]]:
    return list(DTYPES.items())[: context.size(3, 1)]


def _check(name: str, make: Callable[[], Problem], context: Context) -> Check:
    return Check(name, lambda: make().judged(context))


def _problems(context: Context) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """Problems with one size at a border: float32 at all of them, 16 bits at the widest."""
    kernels: dict[str, tuple[Callable[..., Problem], dict[str, tuple[int, ...]]]] = {
        "additive attention": (
            additive_attention,
            {"n": TILES, "m": TILES, "h": (1, 2, 3, 65), "d_v": TILES},
        ),
        "additive scores": (additive_scores, {"n": WIDE_TILES, "m": WIDE_TILES, "h": (1, 2, 3, 65)}),
        "decoding step": (decoding_step, {"m": (1, 31, 32, 33, 1000), "h": (1, 3, 65, 1000, 2000)}),
        "dot-product attention": (
            dot_product_attention,
            {"n": NARROW_TILES, "m": NARROW_TILES, "d": (1, 3, 63, 65, 256)},
        ),
    }
    for short, dtype in _dtypes(context):
        for name, (make, sizes) in kernels.items():
            for size, numbers in sizes.items():
                chosen = numbers if dtype is torch.float32 else numbers[-2:]
                for number in chosen[:1] if context.dry else chosen:
                    yield f"{name}, {short}, {size}={number}", partial(make, context, dtype, **{size: number})


def _sanitized(tool: str) -> Outcome:
    """Run every kernel once under a tool of compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return Outcome(NOT_TRIED, remark="compute-sanitizer is not installed")
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu.calls"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_OF_TOOL)
    except subprocess.TimeoutExpired:
        return Outcome(NOT_TRIED, remark=f"compute-sanitizer takes more than {SECONDS_OF_TOOL} s")
    output = done.stdout + done.stderr
    if "not supported" in output:
        return Outcome(NOT_TRIED, remark="compute-sanitizer does not support the device")
    errors = [line for line in output.splitlines() if line.startswith("=========") and "Error" in line]
    return outcome(done.returncode == 0, remark="; ".join(errors[:2]))
