"""Measures what calls of each path take, and fits the constants by which the backend chooses among its paths.

Another instruction set is measured where the processor has it too: ``python -m benchmarks calibrate --instructions
avx2`` hides the wider registers from LLVM and PyTorch.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.pytorch.kernels.additive import routes as additive
from attnspec.backends.pytorch.kernels.costs import instruction_set as instruction_set
from attnspec.backends.pytorch.kernels.dot import routes as dot
from attnspec.backends.pytorch.runtime.forcing import forcing
from benchmarks.case import FORWARD, WITH_BACKWARD, make_call
from benchmarks.suites.settings import Inputs
from benchmarks.timing import interleaved

KINDS = {"float32": torch.float32, "float64": torch.float64, "half": torch.bfloat16}
MODES = {"forward": FORWARD, "gradients": WITH_BACKWARD}
OPERATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, str]]] = {
    "additive": (pytorch.additive_attention, ("direct", "llvm")),
    "dot": (pytorch.scaled_dot_product_attention, ("llvm", "pytorch")),
}
SIZES = (
    (1, 1, 1, 8), (1, 1, 64, 64), (8, 1, 32, 128), (2, 8, 8, 32), (4, 16, 16, 64), (4, 32, 32, 64), (4, 64, 64, 64),
    (16, 1, 256, 64), (1, 128, 128, 64), (2, 16, 512, 32), (1, 256, 256, 64), (8, 4, 128, 128),
    (4, 256, 256, 64), (1, 512, 512, 64),
)  # fmt: skip
"""Batch, queries, keys, features and hidden units."""

AVX2_ONLY = """
import llvmlite.binding as llvm
given = llvm.get_host_cpu_features
def narrow():
    found = given()
    for name in found:
        if "avx512" in name or "avx10" in name:
            found[name] = False
    return found
llvm.get_host_cpu_features = narrow
from benchmarks.calibration import lines
for line in lines({seconds}):
    print(line)
"""


def as_avx2(seconds: float) -> Iterator[str]:
    """The lines of a process that sees no registers of 512 bits."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "ATTNSPEC_CACHE": "off"}
    command = [sys.executable, "-c", AVX2_ONLY.format(seconds=seconds)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    yield from done.stdout.splitlines()


def lines(seconds: float) -> Iterator[str]:
    """The constants of this machine's instruction set, as they stand in `kernels/measured.py`."""
    torch.set_num_threads(1)
    yield f'    "{instruction_set()}": {{'
    for (operation, (call, paths)), (kind, dtype), (name, mode) in itertools.product(
        OPERATIONS.items(), KINDS.items(), MODES.items()
    ):
        times: dict[str, list[float]] = {path: [] for path in paths}
        for size in SIZES:
            inputs = _inputs(operation, size, dtype)
            calls = {path: _forced(path, make_call(mode, call, inputs)) for path in paths}
            first = dict.fromkeys(paths, 0.0)
            found = interleaved(calls, first, rounds=15, seconds=seconds)
            for path in paths:
                times[path].append(found[path].quartiles[0] * 1e6)
        for path in paths:
            cost = fit([_work(operation, path, size, dtype) for size in SIZES], times[path])
            key = ", ".join(f'"{word}"' for word in (operation, path, kind, name))
            yield f"        ({key}): Cost({', '.join(f'{x:.3g}' for x in cost)}),"
    yield "    },"


def _forced(path: str, call: Callable[[], Any]) -> Callable[[], Any]:
    def forced() -> Any:
        with forcing(path):
            return call()

    return forced


def _inputs(operation: str, size: tuple[int, int, int, int], dtype: torch.dtype) -> Sequence[Tensor]:
    batch, n, m, d = size
    draw = Inputs("cpu")
    data = [draw.normal(batch, rows, d, dtype=dtype) for rows in (n, m, m)]
    if operation == "dot":
        return data
    return *data, *(draw.normal(*shape, scale=d**-0.5, dtype=dtype) for shape in ((d, d), (d, d), (d,)))


def _work(operation: str, path: str, size: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[float, float]:
    batch, n, m, d = size
    if operation == "additive":
        return additive.work(batch, n, m, d, d)
    return dot.work(path, batch, n, m, d, d, dtype)


def fit(works: Sequence[tuple[float, float]], times: Sequence[float]) -> tuple[float, float, float]:
    """Microseconds of a call, nanoseconds of a pair and of a row, none negative: least squares of relative errors."""
    columns = np.array([(1.0, pairs / 1e3, rows / 1e3) for pairs, rows in works]) / np.array(times)[:, None]
    best, least = (float(min(times)), 0.0, 0.0), np.inf
    for used in itertools.product((True, False), repeat=3):
        if not any(used):
            continue
        found = np.zeros(3)
        found[list(used)] = np.linalg.lstsq(columns[:, used], np.ones(len(times)), rcond=None)[0]
        error = float(((columns @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = (float(found[0]), float(found[1]), float(found[2])), error
    return best
