"""Questions on which correct libraries differ: each backend declares its choice, the suite observes it.

The first choice of every question is normative. A declared choice other than that is printed as a deviation; a
declared choice other than the observed one is a violation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from attnspec.spec.contract.operation import Kind, Operation


@dataclass(frozen=True)
class Question:
    """One open question; ``choices[0]`` is normative, ``concerns`` selects the operations that it is put to."""

    name: str
    statement: str
    choices: tuple[str, ...]
    concerns: Callable[[Operation], bool]

    @property
    def normative(self) -> str:
        """The choice of the reference."""
        return self.choices[0]


def _averages_keys(operation: Operation) -> bool:
    """Whether a row of weights over attendable keys is summed to a value."""
    return operation.takes("mask") and operation.chapter != "normalization"


QUESTIONS: Mapping[str, Question] = {
    q.name: q
    for q in (
        Question(
            "fully_masked",
            "What does a row without attendable keys give?",
            ("zero", "uniform", "nan"),
            lambda operation: operation.takes("mask"),
        ),
        Question("no_keys", "What does attention over m = 0 keys give?", ("zero", "nan", "error"), _averages_keys),
        Question(
            "causal_alignment",
            "When n ≠ m, is query i aligned with key i (top-left) or with key i + m − n (bottom-right)?",
            ("top-left", "bottom-right"),
            lambda operation: operation.takes("causal", "key"),
        ),
        Question(
            "masked_nonfinite",
            "Does NaN or an infinity stored at a masked key or value reach the result?",
            ("excluded", "propagates"),
            lambda operation: operation.takes("mask"),
        ),
        Question(
            "odd_encoding",
            "What do the sinusoids give for an odd number of columns?",
            ("unpaired-sine", "error"),
            lambda operation: operation.name == "sinusoidal_positional_encoding",
        ),
        Question(
            "repeatability",
            "Does the same call give the same bits?",
            ("bitwise", "within-budget"),
            lambda operation: operation.result.kind is Kind.FLOAT,
        ),
    )
}


@dataclass(frozen=True)
class Semantics:
    """What one operation of a backend chooses; ``ValueError`` names a choice that does not exist."""

    fully_masked: str = "zero"
    no_keys: str = "zero"
    causal_alignment: str = "top-left"
    masked_nonfinite: str = "excluded"
    odd_encoding: str = "unpaired-sine"
    repeatability: str = "bitwise"

    def __post_init__(self) -> None:
        for f in fields(self):
            choice, question = getattr(self, f.name), QUESTIONS[f.name]
            if choice not in question.choices:
                raise ValueError(f"semantics {f.name}: expected one of {', '.join(question.choices)}; got {choice!r}")

    @classmethod
    def of(cls, declared: "Semantics | Mapping[str, Any] | None") -> "Semantics":
        """A declaration as given by a backend: an instance, a mapping of some questions, or nothing."""
        if declared is None:
            return cls()
        if isinstance(declared, cls):
            return declared
        if not isinstance(declared, Mapping):
            raise ValueError(f"semantics: expected Semantics or a mapping; got {type(declared).__name__}")
        unknown = sorted(set(declared) - set(QUESTIONS))
        if unknown:
            raise ValueError(f"semantics: expected questions among {', '.join(QUESTIONS)}; got {', '.join(unknown)}")
        return cls(**declared)


@dataclass(frozen=True)
class DeclaredSemantics:
    """A backend's declaration for each of its operations: ``{operation: …, "*": …}`` or one for all."""

    default: Semantics = Semantics()
    per_operation: Mapping[str, Semantics] = field(default_factory=dict)

    def __getitem__(self, operation: str) -> Semantics:
        return self.per_operation.get(operation, self.default)

    @classmethod
    def of(cls, declared: Any, operations: Mapping[str, Operation]) -> "DeclaredSemantics":
        """Read the attribute ``semantics`` of a backend; ``ValueError`` says what was expected and got."""
        if isinstance(declared, Mapping) and declared and set(declared) <= {*operations, "*"}:
            parts = {name: Semantics.of(d) for name, d in declared.items()}
            return cls(parts.pop("*", Semantics()), parts)
        return cls(Semantics.of(declared))
