"""How much is tried: quick for every save, full for a release candidate, release for a release."""

from collections.abc import Mapping
from dataclasses import dataclass

NARROW = frozenset({"bfloat16", "float16"})
"""The dtypes of 16 bits."""


@dataclass(frozen=True)
class Profile:
    """How many examples, and how large.

    corners: rows of the covering array. drawn: examples that Hypothesis draws. stride: a law other than the oracle's is
    checked on every so-many-th example; stride_narrow: the same for the dtypes of 16 bits, in which structure is what
    it is in the wide ones. work: multiply-adds of an example at the most; work_double: the same for float64, whose
    oracle computes in long double, without BLAS.
    """

    corners: int
    drawn: int
    stride: int
    stride_narrow: int
    work: float
    work_double: float

    def stride_for(self, dtype: str) -> int:
        """The stride at a dtype."""
        return self.stride_narrow if dtype in NARROW else self.stride

    def work_for(self, dtype: str) -> float:
        """The bound on work at a dtype."""
        return self.work_double if dtype == "float64" else self.work


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(corners=14, drawn=3, stride=3, stride_narrow=5, work=2.0**14, work_double=2.0**12),
    "full": Profile(corners=90, drawn=30, stride=2, stride_narrow=3, work=2.0**19, work_double=2.0**16),
    "release": Profile(corners=400, drawn=600, stride=1, stride_narrow=1, work=2.0**22, work_double=2.0**19),
}
