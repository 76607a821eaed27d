"""Open questions, on which libraries differ: each backend declares its choice, the suite observes it.

Every question is declared once, as a field of :class:`Semantics` whose type is its choices. The default is the
normative choice. A declared choice other than that is printed as a deviation; a declared choice other than the observed
one is a violation.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.declared import declared_as
from attnspec.spec.contract.operation import Operation


class Question(NamedTuple):
    """One open question; ``normative`` is the choice of the reference, ``concerns`` selects the operations."""

    name: str
    statement: str
    choices: tuple[str, ...]
    normative: str
    concerns: Callable[[Operation], bool]


def question(normative: str, statement: str, concerns: Callable[[Operation], bool]) -> Any:
    """A field of :class:`Semantics`: its default, what is asked, and of which operations."""
    return field(default=normative, metadata={"statement": statement, "concerns": concerns})


def _masked(operation: Operation) -> bool:
    return operation.mask is not None


def _weighs_keys(operation: Operation) -> bool:
    return operation.only_weighs_keys


def _aligns(operation: Operation) -> bool:
    return operation.flag is not None and len(operation.causal) == 2


def _counts_without_floats(operation: Operation) -> bool:
    """Whether the result is computed from sizes alone, such as a positional encoding."""
    return operation.float_result and not operation.leaves and bool(operation.sizes_of(Axis.FEATURE))


def _gives_floats(operation: Operation) -> bool:
    return operation.float_result


@dataclass(frozen=True)
class Semantics:
    """The choices of a backend for one operation; ``ValueError`` names a choice that does not exist."""

    fully_masked: Literal["zero", "uniform", "nan"] = question(
        "zero", "What does a row without attendable keys give?", _masked
    )
    no_keys: Literal["zero", "nan", "error"] = question(
        "zero", "What does attention over m = 0 keys give?", _weighs_keys
    )
    causal_alignment: Literal["top-left", "bottom-right"] = question(
        "top-left",
        "When n ≠ m, is query i aligned with key i (top-left) or with key i + m − n (bottom-right)?",
        _aligns,
    )
    masked_nonfinite: Literal["excluded", "propagates"] = question(
        "excluded", "Does NaN or an infinity stored at a masked key or value reach the result?", _masked
    )
    odd_encoding: Literal["unpaired-sine", "error"] = question(
        "unpaired-sine", "What do the sinusoids give for an odd number of columns?", _counts_without_floats
    )
    repeatability: Literal["bitwise", "within-budget"] = question(
        "bitwise", "Does the same call give the same bits?", _gives_floats
    )

    def __post_init__(self) -> None:
        for q in QUESTIONS.values():
            choice = getattr(self, q.name)
            if choice not in q.choices:
                raise ValueError(f"semantics {q.name}: expected one of {', '.join(q.choices)}; got {choice!r}")

    @classmethod
    def of(cls, declared: "Semantics | Mapping[str, Any] | None") -> "Semantics":
        """A declaration as given by a backend: an instance, a mapping of some questions, or nothing."""
        return declared_as(cls, declared, "semantics", "questions")


def _question(f: "Field[Any]") -> Question:
    return Question(f.name, f.metadata["statement"], get_args(f.type), str(f.default), f.metadata["concerns"])


QUESTIONS: Mapping[str, Question] = {f.name: _question(f) for f in fields(Semantics)}
"""Every question, by name."""


@dataclass(frozen=True)
class DeclaredSemantics:
    """A backend's declaration for each of its operations: ``{operation: …, "*": …}`` or one for all."""

    default: Semantics = field(default_factory=Semantics)
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
