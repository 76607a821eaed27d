"""Calibration of the cost model by which the backend chooses among its paths.

``python -m benchmarks calibrate --instructions avx2`` calibrates for AVX2 on a processor with AVX-512: it hides the
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
from attnspec.backends.pytorch.kernels.additive import path_choice as additive
from attnspec.backends.pytorch.kernels.costs import COLUMNS, SIZES, Work
from attnspec.backends.pytorch.kernels.costs import instruction_set as instruction_set
from attnspec.backends.pytorch.kernels.dot import path_costs as dot
from attnspec.backends.pytorch.kernels.dot import small
from attnspec.backends.pytorch.kernels.dot.call import Call, Options, Tensors
from attnspec.backends.pytorch.runtime.accumulation import FLOAT_DTYPES
from attnspec.backends.pytorch.runtime.forcing import forcing
from benchmarks.case import FORWARD, WITH_BACKWARD, make_call
from benchmarks.suites.settings import Inputs
from benchmarks.timing import interleaved, time_once

KINDS = {str(x).removeprefix("torch."): x for x in FLOAT_DTYPES}
MODES = {"forward": FORWARD, "gradients": WITH_BACKWARD}
OPERATIONS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "additive": (pytorch.additive_attention, ("pointwise", "llvm")),
    "dot": (pytorch.scaled_dot_product_attention, ("llvm", "pytorch", "decode", "small")),
}
"""Function of the backend, and its paths, by operation."""

Size = tuple[int, int, int, int]
"""Numbers of batch elements, queries, keys and features."""

AVX2_ONLY = """
import llvmlite.binding as llvm
real_features = llvm.get_host_cpu_features
def without_avx512():
    features = real_features()
    for name in features:
        if "avx512" in name or "avx10" in name:
            features[name] = False
    return features
llvm.get_host_cpu_features = without_avx512
from benchmarks.calibration import lines
for line in lines({seconds}, {operations}):
    print(line)
"""


def as_avx2(seconds: float, operations: Sequence[str] = tuple(OPERATIONS)) -> Iterator[str]:
    """Yield the `lines` of another process, which sees no 512-bit registers."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "ATTNSPEC_CACHE": "off"}
    command = [sys.executable, "-c", AVX2_ONLY.format(seconds=seconds, operations=list(operations))]
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    yield from process.stdout.splitlines()


def lines(seconds: float, operations: Sequence[str] = tuple(OPERATIONS)) -> Iterator[str]:
    """Yield the cost table of this machine's instruction set, for the folder ``kernels/measured``."""
    torch.set_num_threads(1)
    yield "\t".join(COLUMNS)
    for operation, (kind, dtype), (name, mode) in itertools.product(operations, KINDS.items(), MODES.items()):
        call, paths = OPERATIONS[operation]
        times: dict[str, dict[Size, float]] = {path: {} for path in paths}
        for size in SIZES:
            inputs = _inputs(operation, size, dtype)
            serving = [path for path in paths if _serves(path, name, size, dtype)]
            calls = {path: _forced(path, make_call(mode, call, inputs)) for path in serving}
            # The first call may compile; `interleaved` chooses the number of repeats by a later call.
            first = {path: time_once(compute) for path, compute in calls.items()}
            measured = interleaved(calls, first, rounds=15, seconds=seconds)
            for path in serving:
                times[path][size] = measured[path].quartiles[0] * 1e6
        for path in paths:
            if not times[path]:
                continue
            works = {size: _work(operation, path, size, dtype) for size in times[path]}
            cost = fit(list(works.values()), list(times[path].values()))
            model = {size: cost[0] + np.dot(cost[1:], works[size]) / 1e3 for size in works}
            # Measured over modelled time at each of `SIZES`; 0 where the path does not serve the size.
            factors = [times[path][size] / model[size] if size in model else 0 for size in SIZES]
            if operation == "additive":
                factors = []  # they would change few choices, and the times of calls by 0.4 % on average
            yield row((operation, path, kind, name), cost, factors)


def row(key: Sequence[str], cost: Sequence[float], factors: Sequence[float]) -> str:
    """Return a line of the table, each number with three digits."""
    return "\t".join((*key, *(f"{x:.3g}" for x in cost), " ".join(f"{x:.3g}" for x in factors)))


def _serves(path: str, mode: str, size: Size, dtype: torch.dtype) -> bool:
    """Return whether a path serves calls of this size, dtype and mode."""
    if path == "decode":
        return size[1] == 1 and mode == "forward"
    if path == "small":
        batch, n, m, d = size
        query, key = (torch.empty(batch, 1, rows, d, dtype=dtype) for rows in (n, m))
        return small.serves(Call(query, key, key, Options(1.0), Tensors()))
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
    """Fit µs per call and ns per unit of work, by non-negative relative least squares."""
    columns = np.array([(1.0, *(units / 1e3 for units in work)) for work in works]) / np.array(times)[:, None]
    best, least = (float(min(times)), *(0.0 for _ in Work._fields)), np.inf
    # Few columns: every subset is fitted, and the best fit without a negative coefficient wins.
    for columns_used in itertools.product((True, False), repeat=columns.shape[1]):
        if not any(columns_used):
            continue
        coefficients = np.zeros(columns.shape[1])
        coefficients[list(columns_used)] = np.linalg.lstsq(columns[:, columns_used], np.ones(len(times)), rcond=None)[0]
        error = float(((columns @ coefficients - 1) ** 2).sum())
        if (coefficients >= 0).all() and error < least:
            best, least = tuple(float(x) for x in coefficients), error
    return best
