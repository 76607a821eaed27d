"""What a diagnosis says, and how it travels in a report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Diagnosis:
    """One guess at what is wrong with an operation at a dtype.

    ``same`` names all known defects that give the same numbers as the backend on all inputs that were compared, the one
    that ``sentence`` is about first. It is empty for a precision class, which gives no numbers.
    """

    operation: str
    dtype: str
    sentence: str
    same: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON."""
        return {**asdict(self), "same": list(self.same)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Diagnosis":
        """The diagnosis that plain JSON describes."""
        return cls(**{**data, "same": tuple(data["same"])})
