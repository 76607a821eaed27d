"""How much is tried: quick for every save, full for a release candidate, release for a release."""

from collections.abc import Mapping
from dataclasses import dataclass

NARROW = frozenset({"bfloat16", "float16"})
"""The dtypes of 16 bits."""


@dataclass(frozen=True)
class Effort:
    """How many examples, and how large, at some dtypes.

    corners: rows of the covering array. drawn: examples that Hypothesis draws. stride: a law other than the oracle's is
    checked on every so-many-th example. gradients: the same for the law that compares all gradients, and has no other
    beside it. work: multiply-adds of an example at the most.
    """

    corners: int
    drawn: int
    stride: int
    gradients: int
    work: float

    def due(self, law: str, index: int, place: int) -> bool:
        """Whether a law, at this place among others, is checked on the example of this number."""
        if law == "operation.oracle":
            return True
        if law == "operation.gradient":
            return index % self.gradients == 0
        return (index + place) % self.stride == 0


@dataclass(frozen=True)
class Profile:
    """The efforts of a run: for float32, for float64 and for the dtypes of 16 bits.

    The oracle of float64 computes in long double, without BLAS, hence on smaller examples. Structure is in narrow
    dtypes what it is in wide ones, hence fewer examples there.
    """

    single: Effort
    double: Effort
    narrow: Effort

    def at(self, dtype: str) -> Effort:
        """The effort at a dtype; whatever has none of its own is like float32."""
        return self.double if dtype == "float64" else self.narrow if dtype in NARROW else self.single


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        Effort(13, 3, 3, 2, 2.0**14),
        Effort(13, 2, 3, 3, 2.0**12),
        Effort(9, 2, 4, 4, 2.0**14),
    ),
    "full": Profile(
        Effort(76, 26, 2, 2, 2.0**19),
        Effort(76, 26, 2, 2, 2.0**16),
        Effort(76, 26, 3, 3, 2.0**19),
    ),
    "release": Profile(
        Effort(400, 600, 1, 1, 2.0**22),
        Effort(400, 600, 1, 1, 2.0**19),
        Effort(400, 600, 1, 1, 2.0**22),
    ),
}
