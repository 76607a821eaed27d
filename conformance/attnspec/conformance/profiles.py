"""How much is tried: quick for every save, full for a release candidate, release for a release."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """How many examples, and how large.

    corners: rows of the covering array. drawn: examples that Hypothesis draws. stride: a law other than the oracle's is
    checked on every so-many-th example. work: multiply-adds of an example at the most; work_double: the same for
    float64, whose oracle computes in long double, without BLAS.
    """

    corners: int
    drawn: int
    stride: int
    work: float
    work_double: float

    def work_for(self, dtype: str) -> float:
        """The bound on work at a dtype."""
        return self.work_double if dtype == "float64" else self.work


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(corners=18, drawn=4, stride=3, work=2.0**14, work_double=2.0**12),
    "full": Profile(corners=90, drawn=30, stride=2, work=2.0**19, work_double=2.0**16),
    "release": Profile(corners=400, drawn=600, stride=1, work=2.0**22, work_double=2.0**19),
}
