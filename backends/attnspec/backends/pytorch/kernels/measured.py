"""What calls of each path took, by instruction set."""

from collections.abc import Mapping

from attnspec.backends.pytorch.kernels.cost import Cost, Costs
from attnspec.backends.pytorch.kernels.measured_amx import AMX
from attnspec.backends.pytorch.kernels.measured_avx2 import AVX2
from attnspec.backends.pytorch.kernels.measured_avx512 import AVX512
from attnspec.backends.pytorch.kernels.measured_zen5 import ZEN5


def without_avx() -> Costs:
    """Registers of 128 bits, not measured: all kernels are taken to need twice the time that they need in AVX2."""
    return {key: Cost(cost.call, 2 * cost.pair, 2 * cost.score, cost.row, cost.measured) for key, cost in AVX2.items()}


COSTS: Mapping[str, Costs] = {"amx": AMX, "zen5": ZEN5, "avx512": AVX512, "avx2": AVX2, "neon": without_avx()}
