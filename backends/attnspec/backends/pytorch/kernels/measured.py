"""What calls of each path took, as `python -m benchmarks calibrate` prints it for the machine that it runs on."""

from collections.abc import Mapping
from typing import NamedTuple


class Cost(NamedTuple):
    """Microseconds of a call, and nanoseconds of each unit of its work on one thread.

    ``pair`` counts the terms or multiply-adds of queries with keys, ``row`` the numbers of the queries, keys and values
    themselves. Kernels whose lanes hold queries count empty lanes as pairs too.
    """

    call: float
    pair: float
    row: float


Costs = Mapping[tuple[str, str, str, str], Cost]
"""By operation, path, dtype (``half`` are both of 16 bits), and whether gradients are computed."""

MEASURED: Mapping[str, Costs] = {
    "avx512": {
        ("additive", "direct", "float32", "forward"): Cost(19.2, 0.577, 1.18),
        ("additive", "llvm", "float32", "forward"): Cost(252, 0.135, 4.7),
        ("additive", "direct", "float32", "gradients"): Cost(197, 1.32, 7.21),
        ("additive", "llvm", "float32", "gradients"): Cost(1.61e03, 0.649, 37.5),
        ("additive", "direct", "float64", "forward"): Cost(18.4, 1.27, 2.6),
        ("additive", "llvm", "float64", "forward"): Cost(223, 0.0967, 11.3),
        ("additive", "direct", "float64", "gradients"): Cost(236, 2.99, 22.4),
        ("additive", "llvm", "float64", "gradients"): Cost(1.23e03, 0.6, 33.8),
        ("additive", "direct", "half", "forward"): Cost(27.1, 0.406, 1.57),
        ("additive", "llvm", "half", "forward"): Cost(209, 0.0432, 4.64),
        ("additive", "direct", "half", "gradients"): Cost(225, 0.952, 8.63),
        ("additive", "llvm", "half", "gradients"): Cost(1.41e03, 0.126, 16.8),
        ("dot", "llvm", "float32", "forward"): Cost(11.7, 0.00839, 0),
        ("dot", "pytorch", "float32", "forward"): Cost(14.3, 0.0261, 0.0735),
        ("dot", "llvm", "float32", "gradients"): Cost(110, 0.0398, 0),
        ("dot", "pytorch", "float32", "gradients"): Cost(71.4, 0.14, 0.545),
        ("dot", "llvm", "float64", "forward"): Cost(11.9, 0.02, 0),
        ("dot", "pytorch", "float64", "forward"): Cost(14.7, 0.0794, 0.0591),
        ("dot", "llvm", "float64", "gradients"): Cost(100, 0.0957, 0.214),
        ("dot", "pytorch", "float64", "gradients"): Cost(70.6, 0.274, 0.921),
        ("dot", "llvm", "half", "forward"): Cost(16.6, 0.0112, 0),
        ("dot", "pytorch", "half", "forward"): Cost(16.2, 0.026, 0.191),
        ("dot", "llvm", "half", "gradients"): Cost(146, 0.0847, 1.32),
        ("dot", "pytorch", "half", "gradients"): Cost(90.3, 0.291, 1.22),
    },
    "avx2": {
        ("additive", "direct", "float32", "forward"): Cost(17.8, 0.696, 1.25),
        ("additive", "llvm", "float32", "forward"): Cost(224, 0.223, 2.14),
        ("additive", "direct", "float32", "gradients"): Cost(155, 2.07, 11.1),
        ("additive", "llvm", "float32", "gradients"): Cost(1.13e03, 0.135, 32.3),
        ("additive", "direct", "float64", "forward"): Cost(18.2, 2.04, 2.3),
        ("additive", "llvm", "float64", "forward"): Cost(189, 0.445, 7.51),
        ("additive", "direct", "float64", "gradients"): Cost(165, 14.5, 3.55),
        ("additive", "llvm", "float64", "gradients"): Cost(1.09e03, 10.1, 36.9),
        ("additive", "direct", "half", "forward"): Cost(29.4, 0.727, 1.29),
        ("additive", "llvm", "half", "forward"): Cost(241, 0.433, 4.74),
        ("additive", "direct", "half", "gradients"): Cost(191, 3.69, 7.48),
        ("additive", "llvm", "half", "gradients"): Cost(1.3e03, 1.5, 23.1),
        ("dot", "llvm", "float32", "forward"): Cost(12, 0.0222, 0),
        ("dot", "pytorch", "float32", "forward"): Cost(15.4, 0.0279, 0.0677),
        ("dot", "llvm", "float32", "gradients"): Cost(103, 0.0924, 0),
        ("dot", "pytorch", "float32", "gradients"): Cost(78.2, 0.126, 0.463),
        ("dot", "llvm", "float64", "forward"): Cost(11.6, 0.0518, 0),
        ("dot", "pytorch", "float64", "forward"): Cost(14.1, 0.0775, 0.0805),
        ("dot", "llvm", "float64", "gradients"): Cost(95.3, 0.349, 0),
        ("dot", "pytorch", "float64", "gradients"): Cost(79.4, 0.392, 0.348),
        ("dot", "llvm", "half", "forward"): Cost(18.3, 0.0239, 0.0249),
        ("dot", "pytorch", "half", "forward"): Cost(16.9, 0.0294, 0.201),
        ("dot", "llvm", "half", "gradients"): Cost(121, 0.175, 0.396),
        ("dot", "pytorch", "half", "gradients"): Cost(78.4, 0.201, 3.42),
    },
}
"""By instruction set: on one core of Zen 5 with all of its instructions, and with those of AVX2."""


def _without_avx() -> Costs:
    """Registers of 128 bits, not measured: all kernels are taken to need twice the time that they need in AVX2."""
    return {key: Cost(call, 2 * pair, row) for key, (call, pair, row) in MEASURED["avx2"].items()}


COSTS: Mapping[str, Costs] = {**MEASURED, "neon": _without_avx()}
