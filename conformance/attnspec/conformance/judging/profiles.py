"""How much is tried: quick for every save, full for a change to be published, release for a release."""

from collections.abc import Mapping
from dataclasses import dataclass

from attnspec.conformance.inputs.dtypes import NARROW

FORMULA = "operation.oracle"
"""The law that a result is that of the formula: it is checked on every example."""

GRADIENT = "operation.gradient"
"""The law that gradients are those of the formula."""

MACHINERY = frozenset({"operation", "sizes", "storage", "training"})
"""Chapters of laws about how a call is made, whose numbers may be wrong because the formula is."""

REMEMBERING = frozenset(
    {
        *("operation.no-memory", "operation.own-memory"),
        *("training.no-memory", "training.own-memory", "training.later-writes"),
    }
)
"""Laws of what an earlier call leaves behind, which makes a plain call wrong that would be right in a new process."""

COSTLY = {GRADIENT, "operation.rejection"}
"""Laws that compare all gradients, or try a wrong shape of every argument."""


@dataclass(frozen=True)
class Effort:
    """How many examples, and how large, at some dtypes.

    corners: rows of the covering array. drawn: examples that Hypothesis draws. stride: laws other than the oracle's are
    checked on every stride-th example. costly: the stride of the costly ones. work: the most multiply-adds of an
    example. dear: whether the checks run for which ``quick`` has no time. ensemble: the batch elements of which a
    filter averages the errors.
    """

    corners: int
    drawn: int
    stride: int
    costly: int
    work: float
    dear: bool = True
    ensemble: int = 512

    def due(self, law: str, index: int, place: int) -> bool:
        """Whether the law at this place in the list of laws is checked on the example of this number."""
        if law == FORMULA:
            return True
        if law in COSTLY:
            return index % self.costly == 0
        return (index + place) % self.stride == 0


@dataclass(frozen=True)
class Profile:
    """The efforts of a run: at float32, at float64, and at the dtypes of 16 bits.

    The oracle of float64 computes in long double, without BLAS, hence on smaller examples. A wrong index or shape shows
    at any dtype, hence fewer examples beside float32.
    """

    single: Effort
    double: Effort
    narrow: Effort

    def at(self, dtype: str) -> Effort:
        """The effort at a dtype; that of float32 where a dtype has none of its own."""
        return self.double if dtype == "float64" else self.narrow if dtype in NARROW else self.single


PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        Effort(12, 2, 3, 4, 2.0**14, dear=False),
        Effort(6, 0, 3, 3, 2.0**12, dear=False, ensemble=256),
        Effort(6, 0, 4, 4, 2.0**14, dear=False),
    ),
    "full": Profile(
        Effort(60, 16, 2, 4, 2.0**19, ensemble=4096),
        Effort(28, 6, 2, 5, 2.0**16, ensemble=1024),
        Effort(28, 6, 3, 4, 2.0**19, ensemble=4096),
    ),
    "release": Profile(
        Effort(400, 600, 1, 1, 2.0**22, ensemble=8192),
        Effort(400, 600, 1, 1, 2.0**19, ensemble=2048),
        Effort(400, 600, 1, 1, 2.0**22, ensemble=8192),
    ),
}
