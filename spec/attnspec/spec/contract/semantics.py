"""Questions on which libraries differ: backends declare their choices, and the suite observes them.

Every question is a field of :class:`Semantics`; its type lists the choices, its default is the normative choice.
A declared choice that is not normative is printed as a deviation. It is a violation if the suite observes another
choice than the declared one.

Each question names the law that observes the choice, and ``concerns``: a function that selects the operations which it
is about. A choice that the reference's formulas read, such as the pairing of a rotary embedding, has none (except
``causal_alignment`` and ``fully_masked``): there :func:`depends_on` marks the Protocols and records of parameters whose
formulas read it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import log
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.declared import declared_as
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, walk

R = TypeVar("R", bound=type)
ENCODINGS: Mapping[str, str] = {
    "full": "a mask in full",
    "queries-alike": "a mask that is the same for all queries",
    "keys-alike": "a mask that is the same for all keys",
    "no-batch": "a mask without batch",
}
"""Encodings of a mask; in some libraries the result of a row without attendable keys depends on them."""

_DEPENDENT: dict[str, set[type]] = {}
"""Records and Protocols that :func:`depends_on` registered, by question."""


class Question(NamedTuple):
    """One question; ``normative`` is the choice of the reference, ``concerns`` selects the operations.

    ``law`` is the identifier of the law that observes the choice. ``allowing`` is a choice that promises less than the
    normative one, such as "hidden": NaN may be hidden, or may propagate. A backend that declares it may therefore show
    the normative behaviour. ``allowing`` is empty if no choice is of this kind.
    """

    name: str
    statement: str
    choices: tuple[str, ...]
    normative: str
    concerns: Callable[[Operation], bool]
    law: str
    allowing: str


def question(
    normative: str,
    statement: str,
    concerns: Callable[[Operation], bool] | None = None,
    law: str | None = None,
    allowing: str = "",
) -> Any:
    """Declare a field of :class:`Semantics`: its default, its statement and the operations that it concerns.

    The law that observes the choice is ``semantics.<question>`` unless ``law`` names another one. Without ``concerns``,
    the question concerns the Protocols that :func:`depends_on` decorates, and the operations that have a decorated
    record among their arguments.
    """
    metadata = {"statement": statement, "concerns": concerns, "law": law, "allowing": allowing}
    return field(default=normative, metadata=metadata)


def depends_on(question: str) -> Callable[[R], R]:
    """Declare that results computed with this record, or by this Protocol, depend on a choice.

    ``@depends_on("gru_reset")`` decorates a record, ``@depends_on("rotary_pairs")`` a Protocol.

    ``ValueError`` for a question that is unknown or has ``concerns``.
    """
    open_questions = [f.name for f in fields(Semantics) if f.metadata["concerns"] is None]
    if question not in open_questions:
        raise ValueError(f"depends_on: expected one of {', '.join(open_questions)}; got {question!r}")

    def declared(record: R) -> R:
        _DEPENDENT.setdefault(question, set()).add(record)
        return record

    return declared


def choices_of_formula(operation: Operation) -> dict[str, tuple[str, ...]]:
    """Choices that the formula of an operation can follow, by question."""
    types = {operation.protocol, *(n.build for n in walk(operation.call) if isinstance(n, Branch))}
    questions = (["causal_alignment"] if _aligns(operation) else []) + [q for q, x in _DEPENDENT.items() if x & types]
    choices = {question: QUESTIONS[question].choices for question in questions}
    return {**choices, "fully_masked": ("zero", "uniform")} if operation.masks else choices


def _masked(operation: Operation) -> bool:
    return bool(operation.masks)


def _compares_queries(operation: Operation) -> bool:
    """True if the operation pools values, separate from the keys, for each query."""
    has_query_rows = any(operation.query_size in leaf.sizes for leaf in operation.queries)
    return operation.only_weighs_keys and len(operation.attended) > 1 and has_query_rows


def _normalizes_scores(op: Operation) -> bool:
    """True if the operation turns scores into weights, as softmax does.

    Its scores are an argument with a number per key (last axis), and its result has a number per key.
    """
    scores = [x for x in op.leaves if x.path in op.scores_scale_with and -1 in x.axes(op.key_size or "")]
    return bool(scores) and -1 in op.leading.axes(op.key_size or "")


def _attends(operation: Operation) -> bool:
    return operation.only_weighs_keys or _normalizes_scores(operation)


def _aligns(operation: Operation) -> bool:
    """True if a causal mask compares query and key positions that are numbered separately."""
    return (operation.flag is not None and len(operation.causal) == 2) or len(operation.cumulative) == 2


def _counts_without_floats(operation: Operation) -> bool:
    """True if the result is computed from sizes alone, such as a positional encoding."""
    return operation.float_result and not operation.leaves and bool(operation.sizes_of(Axis.FEATURE))


def _may_be_refused(operation: Operation) -> bool:
    """True if a call can have a wrong size, rank, length or index."""
    names = [size for leaf in operation.leaves for dim in leaf.core for size in dim.sizes if not dim.broadcast]
    has_fixed_rank = any(leaf.core and not leaf.batched for leaf in operation.leaves)
    shares_size = len(names) > len(set(names))
    counts = operation.numbers or operation.lengths or operation.indices
    return bool(counts) or has_fixed_rank or shares_size


@dataclass(frozen=True)
class Semantics:
    """Choices of a backend for one operation; ``ValueError`` names a choice that does not exist."""

    fully_masked: Literal["zero", "uniform", "nan", "error"] = question(
        "zero", "What does a row without attendable keys give?", _masked
    )
    no_keys: Literal["zero", "nan", "error"] = question(
        "zero", "What does attention over m = 0 keys give?", lambda operation: operation.only_weighs_keys
    )
    causal_alignment: Literal["top-left", "bottom-right"] = question(
        "top-left",
        "When n ≠ m, is query i aligned with key i (top-left) or with key i + m − n (bottom-right)?",
        _aligns,
    )
    length_alignment: Literal["ignored", "at-length"] = question(
        "ignored", "With `key_lengths` ℓ, is query i aligned as without them, or with key i + ℓ − n?"
    )
    window_left: Literal["excludes-own", "includes-own"] = question(
        "excludes-own",
        "Does a window of l to the left reach key i − l, or i − l + 1, since l includes the query's own position?",
    )
    logarithms: Literal["natural", "base-2"] = question(
        "natural", "Are log-sum-exps, results of attention and arguments of a merge, logarithms to base e or to base 2?"
    )
    sink_alone: Literal["sink", "minus-infinity"] = question(
        "sink", "Is the log-sum-exp of a row without attendable keys its sink, or −∞ with a sink too?"
    )
    masked_nonfinite: Literal["excluded", "propagates"] = question(
        "excluded", "Does NaN or an infinity stored at a masked key or value reach the result?", _masked
    )
    attendable_nan: Literal["propagates", "hidden"] = question(
        "propagates", "Does NaN at an attendable score, key or value make the rows NaN that attend to it?", _attends
    )
    nan_queries: Literal["propagates", "hidden"] = question(
        "propagates", "Does NaN in a query make its row NaN, or may it be hidden?", _compares_queries, allowing="hidden"
    )
    minus_infinity: Literal["nan", "zero", "uniform"] = question(
        "nan", "What are the weights of a row whose attendable scores are all −∞?", _normalizes_scores
    )
    odd_encoding: Literal["unpaired-sine", "error"] = question(
        "unpaired-sine", "What do the sinusoids give for an odd number of columns?", _counts_without_floats
    )
    gru_reset: Literal["before", "after"] = question(
        "before", "Does the reset gate of a GRU multiply the state before the recurrent product, or the product?"
    )
    gru_update: Literal["state", "candidate"] = question(
        "state", "Does the update gate of a GRU multiply the state before, or the candidate?"
    )
    lstm_forget_bias: Literal["as-given", "plus-one"] = question(
        "as-given", "Is the bias of an LSTM's forget gate added as it is given, or with 1 more?"
    )
    rms_weight: Literal["as-given", "plus-one"] = question(
        "as-given", "Is the weight of RMS normalization a factor as it is given, or with 1 more?"
    )
    gelu_form: Literal["erf", "tanh"] = question(
        "erf", "Is GELU computed by the error function, or by its approximation with tanh?"
    )
    rotary_pairs: Literal["interleaved", "halves"] = question(
        "interleaved", "Does a rotary embedding turn features 2i and 2i + 1 together, or i and i + d/2?"
    )
    rotary_ramp: Literal["rotations", "indices", "whole-indices"] = question(
        "rotations",
        "Between unscaled and scaled rotary frequencies, does the share grow with the rotations of a pair, or with its "
        "index; and are the ends of the ramp then whole indices?",
    )
    padding_positions: Literal["zero", "one", "previous", "minus-one"] = question(
        "zero",
        "Is the position of padding 0, 1, that of the token before it (0 without one), or −1?",
    )
    head_groups: Literal["blocks", "interleaved"] = question(
        "blocks", "Do consecutive query heads share a key head (r // group), or is r mod heads_k the key head of r?"
    )
    alibi_distances: Literal["absolute", "signed"] = question(
        "absolute", "Do linear biases penalise |i − j|, or i − j, which is negative for later keys?"
    )
    repeatability: Literal["bitwise", "within-budget"] = question(
        "bitwise", "Does the same call give the same bits?", lambda o: o.float_result, allowing="within-budget"
    )
    rejection: Literal["raises", "unchecked"] = question(
        "raises",
        "Does a shape or an index that violates the Protocol raise, or is it for the caller to check?",
        _may_be_refused,
        law="operation.rejection",
    )

    def __post_init__(self) -> None:
        if isinstance(self.fully_masked, Mapping | list | tuple):
            object.__setattr__(self, "fully_masked", _by_encoding(self.fully_masked))
        for q in QUESTIONS.values():
            choice = getattr(self, q.name)
            # A tuple holds the choices by encoding, which were checked above.
            if choice not in q.choices and not (q.name == "fully_masked" and isinstance(choice, tuple)):
                raise ValueError(f"semantics {q.name}: expected one of {', '.join(q.choices)}; got {choice!r}")

    @property
    def without_keys(self) -> Mapping[str, str]:
        """Result of a row without attendable keys (``fully_masked``), for each encoding of a mask."""
        choice: Any = self.fully_masked
        return dict(choice) if isinstance(choice, tuple) else dict.fromkeys(ENCODINGS, choice)

    @property
    def bottom_right(self) -> bool:
        """True if a causal mask aligns the last query with the last key."""
        return self.causal_alignment == "bottom-right"

    @property
    def own_in_window(self) -> int:
        """1 if the left side of a window includes the query's own position, else 0."""
        return int(self.window_left == "includes-own")

    @property
    def logarithm_unit(self) -> float:
        """Natural logarithm of the base of log-sum-exps."""
        return log(2) if self.logarithms == "base-2" else 1.0

    @classmethod
    def of(cls, declared: "Semantics | Mapping[str, Any] | None") -> "Semantics":
        """Read a backend's declaration: an instance, a mapping of some questions, or None."""
        return declared_as(cls, declared, "semantics", "questions")


def _by_encoding(declared: Any) -> str | tuple[tuple[str, str], ...]:
    """Convert ``fully_masked`` to pairs of encoding and choice, or to one choice if all agree.

    An undeclared encoding has the choice of ``full``. Pairs have the order of ``ENCODINGS``.
    """
    pairs = tuple(declared.items() if isinstance(declared, Mapping) else declared)
    choice_of = dict(pairs) if all(isinstance(x, tuple | list) and len(x) == 2 for x in pairs) else {}
    if "full" not in choice_of or not set(choice_of) <= set(ENCODINGS):
        raise ValueError(
            f"semantics fully_masked: expected a choice for full, and for some of {', '.join(list(ENCODINGS)[1:])}; "
            f"got {declared!r}"
        )
    choices = QUESTIONS["fully_masked"].choices
    for encoding, choice in choice_of.items():
        if choice not in choices:
            known = ", ".join(choices)
            raise ValueError(f"semantics fully_masked: {encoding}: expected one of {known}; got {choice!r}")
    all_pairs = tuple((encoding, str(choice_of.get(encoding, choice_of["full"]))) for encoding in ENCODINGS)
    return all_pairs if len(set(choice_of.values())) > 1 else all_pairs[0][1]


def spelled(choice: Any) -> str:
    """Text of a declared choice, with all choices if they differ by encoding."""
    return ", ".join(f"{encoding}: {x}" for encoding, x in choice) if isinstance(choice, tuple) else str(choice)


def plain(choice: Any) -> Any:
    """Return a declared choice as the backend wrote it: a mapping for choices by encoding."""
    return dict(choice) if isinstance(choice, tuple) else choice


def _question(f: "Field[Any]") -> Question:
    concerns = f.metadata["concerns"] or (lambda operation: f.name in choices_of_formula(operation))
    law = f.metadata["law"] or f"semantics.{f.name}"
    choices = get_args(f.type)
    return Question(f.name, f.metadata["statement"], choices, str(f.default), concerns, law, f.metadata["allowing"])


QUESTIONS: Mapping[str, Question] = {f.name: _question(f) for f in fields(Semantics)}
"""All questions, by name."""

ASKED_BY: Mapping[str, Question] = {q.law: q for q in QUESTIONS.values()}
"""All questions, by the law that observes the choice."""


@dataclass(frozen=True)
class DeclaredSemantics:
    """Semantics of a backend: ``{operation: …, "*": …}``, or one declaration for all operations."""

    default: Semantics = field(default_factory=Semantics)
    per_operation: Mapping[str, Semantics] = field(default_factory=dict)

    def __getitem__(self, operation: str) -> Semantics:
        return self.per_operation.get(operation, self.default)

    @classmethod
    def of(cls, declared: Any, operations: Mapping[str, Operation]) -> "DeclaredSemantics":
        """Read a backend's ``semantics`` attribute; ``ValueError`` states what was expected and what came."""
        if isinstance(declared, Mapping) and declared and set(declared) <= {*operations, "*"}:
            parts = {name: Semantics.of(d) for name, d in declared.items()}
            return cls(parts.pop("*", Semantics()), parts)
        return cls(Semantics.of(declared))

    def demand_read(self, provided: Iterable[Operation], operations: Mapping[str, Operation]) -> None:
        """Refuse a choice that no operation reads; ``ValueError`` names the questions that are read.

        A choice for one operation is read by that operation, a choice for all by at least one of ``provided``.
        """
        for name, chosen in self.per_operation.items():
            _demand_read(chosen, [operations[name]])
        if read_by := list(provided):
            _demand_read(self.default, read_by)


def _demand_read(chosen: Semantics, readers: Sequence[Operation]) -> None:
    read = [q.name for q in QUESTIONS.values() if any(q.concerns(operation) for operation in readers)]
    unread = [q.name for q in QUESTIONS.values() if getattr(chosen, q.name) != q.normative and q.name not in read]
    if unread:
        readers_text = f"{readers[0].name} reads" if len(readers) == 1 else "the backend's operations read"
        known = ", ".join(read) or "of which there are none"
        raise ValueError(f"semantics: expected questions that {readers_text}, {known}; got {', '.join(unread)}")
