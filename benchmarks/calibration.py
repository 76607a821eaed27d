"""Calibration of the cost model by which the backend chooses among its paths.

``python -m benchmarks calibrate --instructions avx2`` calibrates for AVX2 on a processor that has more: it hides the
wider registers from LLVM and PyTorch.
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
from attnspec.backends.pytorch.kernels.costs import COLUMNS, SIZES, Work
from attnspec.backends.pytorch.kernels.costs import instruction_set as instruction_set
from attnspec.backends.pytorch.kernels.dot import few
from attnspec.backends.pytorch.kernels.dot import routes as dot
from attnspec.backends.pytorch.kernels.dot.call import Call, Options, Tensors
from attnspec.backends.pytorch.runtime.accumulation import FLOAT_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forcing
from benchmarks.case import FORWARD, WITH_BACKWARD, make_call
from benchmarks.suites.settings import Inputs
from benchmarks.timing import interleaved, time_once

KINDS = {str(x).removeprefix("torch."): x for x in FLOAT_DTYPES}
MODES = {"forward": FORWARD, "gradients": WITH_BACKWARD}
OPERATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "additive": (pytorch.additive_attention, ("direct", "llvm")),
    "dot": (pytorch.scaled_dot_product_attention, ("llvm", "pytorch", "step", "few")),
}
Size = tuple[int, int, int, int]

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
for line in lines({seconds}, {operations}):
    print(line)
"""


def as_avx2(seconds: float, operations: Sequence[str] = tuple(OPERATIONS)) -> Iterator[str]:
    """Yield the lines of a process that sees no 512-bit registers."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "ATTNSPEC_CACHE": "off"}
    command = [sys.executable, "-c", AVX2_ONLY.format(seconds=seconds, operations=list(operations))]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    yield from done.stdout.splitlines()


def lines(seconds: float, operations: Sequence[str] = tuple(OPERATIONS)) -> Iterator[str]:
    """Yield the constants of this machine's instruction set, a table for the folder ``measured`` of `kernels`."""
    torch.set_num_threads(1)
    yield "\t".join(COLUMNS)
    for operation, (kind, dtype), (name, mode) in itertools.product(operations, KINDS.items(), MODES.items()):
        call, paths = OPERATIONS[operation]
        times: dict[str, dict[Size, float]] = {path: {} for path in paths}
        for size in SIZES:
            inputs = _inputs(operation, size, dtype)
            serving = [path for path in paths if _serves(path, name, size, dtype)]
            calls = {path: _forced(path, make_call(mode, call, inputs)) for path in serving}
            # the number of repeats follows from later calls, since a first call may compile
            first = {path: time_once(compute) for path, compute in calls.items()}
            found = interleaved(calls, first, rounds=15, seconds=seconds)
            for path in serving:
                times[path][size] = found[path].quartiles[0] * 1e6
        for path in paths:
            if not times[path]:
                continue
            works = {size: _work(operation, path, size, dtype) for size in times[path]}
            cost = fit(list(works.values()), list(times[path].values()))
            model = {size: cost[0] + np.dot(cost[1:], works[size]) / 1e3 for size in works}
            factors = [times[path][size] / model[size] if size in model else 0 for size in SIZES]
            if operation == "additive":
                factors = []  # would change few choices, and times by 0.4 % on average
            yield row((operation, path, kind, name), cost, factors)


def row(key: Sequence[str], cost: Sequence[float], factors: Sequence[float]) -> str:
    """Line of the table, each number with three digits."""
    return "\t".join((*key, *(f"{x:.3g}" for x in cost), " ".join(f"{x:.3g}" for x in factors)))


def _serves(path: str, mode: str, size: Size, dtype: torch.dtype) -> bool:
    """True if a path itself serves calls of this size, dtype and mode."""
    if path == "step":
        return size[1] == 1 and mode == "forward"
    if path == "few":
        batch, n, m, d = size
        query, key = (torch.empty(batch, 1, rows, d, dtype=dtype) for rows in (n, m))
        return few.serves(Call(query, key, key, Options(1.0), Tensors()))
    return True


def _forced(path: str, call: Callable[[], Any]) -> Callable[[], Any]:
    def forced() -> Any:
        with forcing(path):
            return call()

    return forced


def _inputs(operation: str, size: Size, dtype: torch.dtype) -> Sequence[Tensor]:
    batch, n, m, d = size
    draw = Inputs("cpu")
    data = [draw.normal(batch, rows, d, dtype=dtype) for rows in (n, m, m)]
    if operation == "dot":
        return data
    return *data, *(draw.normal(*shape, scale=d**-0.5, dtype=dtype) for shape in ((d, d), (d, d), (d,)))


def _work(operation: str, path: str, size: Size, dtype: torch.dtype) -> Work:
    batch, n, m, d = size
    if operation == "additive":
        return additive.work(batch, n, m, d, d)
    return dot.work(path, batch, n, m, d, d, dtype)


def fit(works: Sequence[Work], times: Sequence[float]) -> tuple[float, ...]:
    """Fit microseconds per call and nanoseconds per unit of work, none negative, by least relative squares."""
    columns = np.array([(1.0, *(units / 1e3 for units in work)) for work in works]) / np.array(times)[:, None]
    best, least = (float(min(times)), *(0.0 for _ in Work._fields)), np.inf
    for used in itertools.product((True, False), repeat=columns.shape[1]):
        if not any(used):
            continue
        found = np.zeros(columns.shape[1])
        found[list(used)] = np.linalg.lstsq(columns[:, used], np.ones(len(times)), rcond=None)[0]
        error = float(((columns @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = tuple(float(x) for x in found), error
    return best
