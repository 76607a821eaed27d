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
        ("additive", "direct", "float32", "forward"): Cost(16.8, 0.357, 1.23),
        ("additive", "llvm", "float32", "forward"): Cost(219, 0.0406, 2.58),
        ("additive", "direct", "float32", "gradients"): Cost(174, 1.2, 4.54),
        ("additive", "llvm", "float32", "gradients"): Cost(1.19e03, 0.146, 23.3),
        ("additive", "direct", "float64", "forward"): Cost(16.4, 1.03, 2.43),
        ("additive", "llvm", "float64", "forward"): Cost(232, 0.109, 5.67),
        ("additive", "direct", "float64", "gradients"): Cost(164, 2.39, 14.6),
        ("additive", "llvm", "float64", "gradients"): Cost(937, 1.1, 41.7),
        ("additive", "direct", "half", "forward"): Cost(30.9, 0.35, 1.38),
        ("additive", "llvm", "half", "forward"): Cost(240, 0.0428, 2.94),
        ("additive", "direct", "half", "gradients"): Cost(260, 1.05, 4.92),
        ("additive", "llvm", "half", "gradients"): Cost(1.14e03, 0.432, 22.2),
        ("dot", "llvm", "float32", "forward"): Cost(11.5, 0.0085, 0),
        ("dot", "pytorch", "float32", "forward"): Cost(13.4, 0.0262, 0.0655),
        ("dot", "llvm", "float32", "gradients"): Cost(108, 0.0339, 0),
        ("dot", "pytorch", "float32", "gradients"): Cost(70.9, 0.104, 0.391),
        ("dot", "llvm", "float64", "forward"): Cost(11, 0.0205, 0),
        ("dot", "pytorch", "float64", "forward"): Cost(14, 0.0683, 0.075),
        ("dot", "llvm", "float64", "gradients"): Cost(93.9, 0.111, 0),
        ("dot", "pytorch", "float64", "gradients"): Cost(66.7, 0.285, 0.776),
        ("dot", "llvm", "half", "forward"): Cost(17.3, 0.00977, 0.00773),
        ("dot", "pytorch", "half", "forward"): Cost(15.4, 0.0263, 0.181),
        ("dot", "llvm", "half", "gradients"): Cost(117, 0.0479, 0.989),
        ("dot", "pytorch", "half", "gradients"): Cost(69.3, 0.118, 3.05),
    },
    "avx2": {
        ("additive", "direct", "float32", "forward"): Cost(16, 0.654, 1.35),
        ("additive", "llvm", "float32", "forward"): Cost(219, 0.124, 2.05),
        ("additive", "direct", "float32", "gradients"): Cost(155, 2.07, 11.1),
        ("additive", "llvm", "float32", "gradients"): Cost(1.13e03, 0.135, 32.3),
        ("additive", "direct", "float64", "forward"): Cost(17.1, 2.26, 1.97),
        ("additive", "llvm", "float64", "forward"): Cost(202, 0.477, 5.46),
        ("additive", "direct", "float64", "gradients"): Cost(118, 34.5, 4.6),
        ("additive", "llvm", "float64", "gradients"): Cost(806, 6.96, 37.2),
        ("additive", "direct", "half", "forward"): Cost(25.2, 0.625, 2.08),
        ("additive", "llvm", "half", "forward"): Cost(258, 0.166, 2.53),
        ("additive", "direct", "half", "gradients"): Cost(275, 2, 6.27),
        ("additive", "llvm", "half", "gradients"): Cost(1.31e03, 2.56, 21.4),
        ("dot", "llvm", "float32", "forward"): Cost(11.4, 0.0207, 0),
        ("dot", "pytorch", "float32", "forward"): Cost(13.7, 0.0282, 0.066),
        ("dot", "llvm", "float32", "gradients"): Cost(110, 0.0914, 0),
        ("dot", "pytorch", "float32", "gradients"): Cost(86.1, 0.105, 0.376),
        ("dot", "llvm", "float64", "forward"): Cost(11.3, 0.0493, 0),
        ("dot", "pytorch", "float64", "forward"): Cost(14.1, 0.075, 0.0712),
        ("dot", "llvm", "float64", "gradients"): Cost(103, 0.198, 0),
        ("dot", "pytorch", "float64", "gradients"): Cost(72.5, 0.286, 0.73),
        ("dot", "llvm", "half", "forward"): Cost(17, 0.0216, 0.057),
        ("dot", "pytorch", "half", "forward"): Cost(16, 0.0288, 0.188),
        ("dot", "llvm", "half", "gradients"): Cost(120, 0.101, 0.401),
        ("dot", "pytorch", "half", "gradients"): Cost(72.2, 0.151, 3.15),
    },
}
"""By instruction set: on one core of Zen 5 with all of its instructions, and with those of AVX2."""


def _without_avx() -> Costs:
    """Registers of 128 bits, not measured: LLVM's kernels are taken to need twice the time that they need in AVX2."""
    narrow = {}
    for key, (call, pair, row) in MEASURED["avx2"].items():
        narrow[key] = Cost(call, pair if "pytorch" in key else 2 * pair, row)
    return narrow


COSTS: Mapping[str, Costs] = {**MEASURED, "neon": _without_avx()}
