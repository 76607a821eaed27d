"""Every convention: an honest and a wrong backend, before `check` and `judge`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.explaining.declaration import Declaration, declaration
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.profiles import FORMULA
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.correct.altered import Altered
from attnspec.conformance.running.in_process import InProcess
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.variants import VARIANTS
from attnspec.spec import OPERATIONS, QUESTIONS
from attnspec.spec.contract.shapes import ShapeError

SDPA, GROUPS, PACKED = "scaled_dot_product_attention", "grouped_query_attention", "variable_length_attention"
BACKENDS: Mapping[str, Altered] = {**MUTANTS, **VARIANTS}

LEFT_OPEN = "the choice allows any number where NaN has an effect"
NOT_SHOWN = "one result of a correct call is the same under every choice"

Call = Callable[[str], dict[str, Any]]
"""Makes the arguments of an operation."""


def call(n: int = 4, m: int = 6, *, nan: str = "", **passed: Any) -> Call:
    """A call of two batch elements; ``nan`` names an array with NaN in row 2."""

    def arguments(operation: str) -> dict[str, Any]:
        library = Library("correct")
        subject = Subject(library, Contract.of(library), OPERATIONS[operation], "float32", "cpu")
        drawn = sample(subject, np.random.default_rng(0), (2,), queries=n, keys=m)
        values = drawn.without_masks().replaced(passed).passed
        if nan:
            values[nan] = values[nan].copy()
            values[nan][0, 2, 0] = np.nan
        return values

    return arguments


def without_keys(*rows: int, n: int = 4) -> Numbers:
    """A mask that hides all keys from some queries, and the last key from all."""
    mask = np.ones((2, n, 6), bool)
    mask[..., -1] = False
    mask[0, list(rows)] = False
    return mask


@dataclass(frozen=True)
class Convention:
    """Choices, an honest and a wrong backend that declare them, and calls.

    Backends are mutants or variants, by name. ``untold`` is the reason why `judge` does not tell the choices apart.
    """

    choices: dict[str, Any]
    operation: str
    honest: str
    wrong: str
    calls: tuple[Call, ...] = (call(),)
    untold: str = ""

    def backend(self, name: str, *, declared: bool = True) -> Any:
        """A backend with this operation alone, which declares the choices or nothing."""
        library = replace(BACKENDS[name], declares=self.choices if declared else {}).backend()
        operation = {self.operation: getattr(library, self.operation)}
        return SimpleNamespace(name=name, semantics=library.semantics, **operation)

    @property
    def known(self) -> tuple[str, ...]:
        """The laws that convict the wrong backend."""
        return MUTANTS[self.wrong].breaks if self.wrong in MUTANTS else self.laws

    @property
    def laws(self) -> tuple[str, ...]:
        """The formula's law, and those that observe the choices."""
        return (FORMULA, *(QUESTIONS[question].law for question in self.choices))


SLOPES = np.array([0.5, 0.25, 0.125, 1.0], np.float32)
BY_SHAPE = {"full": "zero", "queries-alike": "nan", "keys-alike": "zero", "no-batch": "zero"}
ENDS: dict[str, Any] = {"query_ends": np.array([0, 2, 2, 5]), "key_ends": np.array([0, 5, 7, 9])}
LENGTHS: dict[str, Any] = {"key_lengths": np.array([4, 5])}
LOW_SCORES = np.array([[-np.inf] * 130, [0.5, 2.0] * 65], np.float32)

CONVENTIONS = [
    Convention(
        {"fully_masked": "uniform"}, SDPA,
        "fully masked rows are uniform, declared",
        "rows without keys uniform over every second key, declared uniform",
        (call(n=18, mask=without_keys(1, 5, n=18)),),
    ),
    Convention(
        {"fully_masked": "nan"}, SDPA,
        "fully masked rows are NaN, declared",
        "a row without keys makes its batch element NaN, declared NaN",
        (call(mask=without_keys(1)),),
    ),
    Convention(
        {"fully_masked": "error"}, SDPA,
        "rows without keys raise, declared",
        "calls without any attendable key raise, declared for each row",
        (call(mask=without_keys(1)),),
    ),
    Convention(
        {"fully_masked": BY_SHAPE}, SDPA,
        "rows without keys NaN under (1, m) masks, 0 under (n, m) masks, declared",
        "rows without keys NaN under (n, m) masks, uniform under (1, m) masks, declared uniform",
        (call(mask=without_keys(1)[:, 1:2]),),
    ),
    Convention(
        {"no_keys": "nan"}, "average_pooling",
        "results without keys are NaN, declared",
        "sums in reverse",  # 0 without keys
        (call(m=0),),
    ),
    Convention(
        {"no_keys": "error"}, "average_pooling",
        "calls without keys raise, declared",
        "means without values are NaN",
        (call(m=0),),
    ),
    Convention(
        {"causal_alignment": "bottom-right"}, PACKED,
        "all distances from the bottom right, declared",
        "packed sequences aligned by the totals, declared bottom right",
        (call(5, 9, causal=True, **ENDS),),
    ),
    Convention(
        {"causal_alignment": "bottom-right"}, GROUPS,
        "all distances from the bottom right, declared",
        "windows and biases top-left under a bottom-right causal mask",
        (call(causal=True, slopes=SLOPES), call(window=(1, 0))),
    ),
    Convention(
        {"length_alignment": "at-length"}, GROUPS,
        "queries at the end of key lengths, declared",
        "linear biases top-left, where key lengths move the causal mask",
        tuple(call(slopes=SLOPES, **LENGTHS, **x) for x in ({}, {"causal": True}, {"window": (1, 0)})),
    ),
    Convention(
        {"length_alignment": "at-length", "causal_alignment": "bottom-right"}, GROUPS,
        "queries at the end of key lengths, else of all keys, declared",
        "all distances from the bottom right, declared",  # also with lengths
        (call(causal=True, **LENGTHS),),
    ),
    Convention(
        {"window_left": "includes-own"}, GROUPS,
        "windows include the query's own position, declared",
        "both sides of windows include the query's own position, declared for the left",
        (call(6, 6, window=(2, 1)),),
    ),
    Convention(
        {"window_left": "includes-own"}, "sliding_window_mask",
        "windows include the query's own position, declared",
        "both sides of windows include the query's own position, declared for the left",
        (lambda _: {"n": 6, "m": 6, "window": (2, 1)},),
    ),
    Convention(
        {"logarithms": "base-2"}, GROUPS,
        "log-sum-exps to base 2, declared",
        "log-sum-exps natural, declared to base 2",
    ),
    Convention(
        {"logarithms": "base-2"}, "merge_attention",
        "log-sum-exps to base 2, declared",
        "log-sum-exps to base 2 merged as natural ones",
    ),
    Convention(
        {"sink_alone": "minus-infinity"}, GROUPS,
        "log-sum-exps −∞ of rows with a sink alone, declared",
        "log-sum-exps of sinks alone, declared −∞",
        (call(mask=without_keys(1), sinks=SLOPES),),
    ),
    Convention(
        {"masked_nonfinite": "propagates"}, SDPA,
        "NaN under the mask propagates, declared",
        "NaN under the mask excluded, declared to propagate",
        (call(nan="value", mask=np.arange(6) != np.full((1, 1, 1), 2)),),
        LEFT_OPEN,
    ),
    Convention(
        {"attendable_nan": "hidden", "nan_queries": "hidden"}, SDPA,
        "NaN turned into numbers, declared",
        "NaN propagates, declared hidden",
        (call(nan="value"),),
        LEFT_OPEN,
    ),
    Convention(
        {"nan_queries": "hidden"}, SDPA,
        "NaN in queries read as 0, declared",
        "a NaN query makes its batch element NaN",
        (call(nan="query"),),
    ),
    Convention(
        {"minus_infinity": "zero"}, "softmax",
        "rows of −∞ are 0, declared",
        "short rows of −∞ are 0",
        (lambda _: {"scores": LOW_SCORES},),
    ),
    Convention(
        {"minus_infinity": "uniform"}, "softmax",
        "rows of −∞ are uniform, declared",
        "rows of −∞ are 0",
        (lambda _: {"scores": LOW_SCORES},),
    ),
    Convention(
        {"odd_encoding": "error"}, "sinusoidal_positional_encoding",
        "odd widths raise, declared",
        "odd widths end in a cosine",
        (lambda _: {"n": 3, "d": 5},),
    ),
    Convention(
        {"gru_reset": "after"}, "gru_cell",
        "reset gate after the product, declared",
        "reset gate multiplies the bias too, declared after the product",
    ),
    Convention(
        {"gru_update": "candidate"}, "gru_cell",
        "update gate of the candidate, declared",
        "state added without the update gate",
    ),
    Convention(
        {"lstm_forget_bias": "plus-one"}, "lstm_cell",
        "1 added in the forget gate, declared",
        "forget gate as given, declared plus one",
    ),
    Convention(
        {"rms_weight": "plus-one"}, "rms_norm",
        "1 added to RMS weights, declared",
        "RMS weights as given, declared plus one",
    ),
    Convention(
        {"gelu_form": "tanh"}, "gelu",
        "GELU by tanh, declared",
        "GELU by erf, declared tanh",
    ),
    Convention(
        {"rotary_pairs": "halves"}, "rotary_embedding",
        "rotary pairs of halves, declared",
        "pairs of halves, undeclared",  # returned interleaved
    ),
    Convention(
        {"rotary_ramp": "indices"}, "rotary_frequencies",
        "ramp of rotary frequencies by indices, declared",
        "ramp by rotations, declared by indices",
    ),
    Convention(
        {"rotary_ramp": "whole-indices"}, "rotary_frequencies",
        "ramp of rotary frequencies by whole indices, declared",
        "ends of the ramp not rounded, declared whole",
    ),
    Convention(
        {"padding_positions": "one"}, "positions_from_mask",
        "padding at position 1, declared",
        "padding at position 0, declared 1",
        calls=(call(mask=np.array([[False, True, True, False]] * 2)),),
    ),
    Convention(
        {"padding_positions": "previous"}, "positions_from_mask",
        "padding at the previous position, declared",
        "padding one position further, declared previous",
        calls=(call(mask=np.array([[False, True, True, False]] * 2)),),
    ),
    Convention(
        {"padding_positions": "minus-one"}, "positions_from_mask",
        "padding at position −1, declared",
        "padding before tokens at −1 alone, declared −1",
        calls=(call(mask=np.array([[False, True, True, False]] * 2)),),
    ),
    Convention(
        {"head_groups": "interleaved"}, GROUPS,
        "query heads interleaved, declared",
        "query heads in blocks, declared interleaved",
    ),
    Convention(
        {"alibi_distances": "signed"}, GROUPS,
        "signed distance",
        "linear bias added, not subtracted",
        (call(slopes=SLOPES),),
    ),
    Convention(
        {"repeatability": "within-budget"}, SDPA,
        "terms summed in a new order at every call, declared",
        "last key left out in every other call, declared within budget",
        untold=NOT_SHOWN,
    ),
    Convention(
        {"rejection": "unchecked"}, SDPA,
        "shapes not checked, declared",
        "attention scaled by d",
        untold=NOT_SHOWN,
    ),
]  # fmt: skip

of_every_convention = pytest.mark.parametrize("c", CONVENTIONS, ids=lambda c: f"{c.operation} {c.choices}")


def run(backend: Any, operation: str, laws: tuple[str, ...]) -> InProcess:
    """A run of `attnspec check` in float32, by all laws if ``laws`` is empty."""
    contract = Contract.of(backend)
    case = next(x for x in cases(contract, operations=(operation,), laws=laws) if x.dtype != "float64")
    return InProcess(backend, contract, case, Settings())


def violated(backend: Any, operation: str, laws: tuple[str, ...]) -> dict[str, str]:
    """Messages of the first laws that are violated, by law."""
    results = run(backend, operation, laws).results({}, stop_at_first=True)
    return {r.law: r.message for r in results if r.violates}


def proposed_for(c: Convention, laws: tuple[str, ...]) -> tuple[set[str], Declaration]:
    """Violated laws of the undeclared honest backend, and the proposed declaration."""
    judging = run(c.backend(c.honest, declared=False), c.operation, laws)
    results = judging.results({}, counterexamples_for=lambda failed: ())
    failed = [r for r in results if r.violates]
    undeclared = judging.explanation(failed, diagnosable=False).undeclared
    return {r.law for r in failed}, declaration(judging.contract, results, {judging.case.id: undeclared})


def test_the_table_has_every_choice() -> None:
    normative = {(q.name, q.normative) for q in QUESTIONS.values()}
    shown = {(q, x) for c in CONVENTIONS for q, x in c.choices.items() if isinstance(x, str)}
    assert normative | shown == {(q.name, choice) for q in QUESTIONS.values() for choice in q.choices}


@of_every_convention
def test_check_accepts_an_honest_backend_that_declares_its_choices(c: Convention) -> None:
    assert violated(c.backend(c.honest), c.operation, (*c.laws, *c.known)) == {}


@of_every_convention
def test_check_proposes_the_choices_that_are_not_declared(c: Convention) -> None:
    laws, proposed = proposed_for(c, c.laws)
    assert laws
    assert proposed.attributes == {"semantics": c.choices}
    assert {law for _, law, _ in proposed.explained} == laws


@of_every_convention
def test_check_convicts_a_wrong_backend_that_declares_the_choices(c: Convention) -> None:
    assert violated(c.backend(c.wrong), c.operation, c.known)


@of_every_convention
def test_judge_accepts_an_honest_result_and_convicts_a_wrong_one(c: Convention) -> None:
    for make in c.calls:
        arguments = make(c.operation)
        honest, wrong = (partial(getattr(c.backend(x), c.operation), **arguments) for x in (c.honest, c.wrong))
        if "error" in c.choices.values():
            with pytest.raises(ValueError, match="expected"):
                honest()
        else:
            assert judge(c.operation, honest(), **arguments, semantics=c.choices)
            assert bool(judge(c.operation, honest(), **arguments)) == (c.untold == NOT_SHOWN)
        verdict = judge(c.operation, wrong(), **arguments, semantics=c.choices)
        assert bool(verdict) == (c.untold == LEFT_OPEN), verdict
        assert verdict.left_open or c.untold != LEFT_OPEN


def test_judge_checks_shapes_even_if_a_backend_does_not() -> None:
    arguments = call()(SDPA)
    with pytest.raises(ShapeError, match="expected"):
        judge(SDPA, arguments["value"], **arguments, semantics={"rejection": "unchecked"})


@pytest.mark.slow
@of_every_convention
def test_the_proposed_choices_explain_every_law(c: Convention) -> None:
    laws, proposed = proposed_for(c, ())
    assert proposed.attributes == {"semantics": c.choices}
    assert {law for _, law, _ in proposed.explained} == laws
