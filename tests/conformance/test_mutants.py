"""The mutants and the honest variants that test the laws."""

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module, reload
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol

import numpy as np
import pytest
from jaxtyping import Float
from rich.console import Console

from attnspec.conformance import judge
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws.common import sample
from attnspec.conformance.mutants import MUTANTS, Mutant, mutant
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.reporting.kills import judge_mutants
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.selection import matching
from attnspec.conformance.running.trial_pool import outcomes
from attnspec.conformance.running.trials import Trial, TrialOutcome, run_trial
from attnspec.conformance.variants import VARIANTS, Variant, compiled, variant
from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import _OPERATIONS, OPERATIONS
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.tree import flatten
from attnspec.spec.normalization import Softmax
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

COMPILED = VARIANTS["compiled from C with fused multiply-adds"]


@mutant(
    "harmless", replaces="softmax", operations=(Softmax,), breaks=("operation.oracle",), source="none", register=False
)
def harmless(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Nothing is changed."""
    return Formulas.softmax(correct, scores, mask=mask)


@pytest.mark.parametrize("m", MUTANTS.values(), ids=MUTANTS)
def test_every_mutant_is_described_and_can_be_judged(m: Mutant) -> None:
    assert m.source
    assert m.statement
    assert m.operations
    assert len(set(m.operations)) == len(m.operations)
    contract = Contract.of(m.backend())
    assert contract.name == m.name
    for name in m.operations:
        assert name in contract.operations
    assert m.breaks
    for law in m.breaks:
        assert any(OPERATIONS[name] in LAWS[law].operations for name in m.operations)
    assert cases(contract, operations=m.operations, dtypes=(m.dtype,))


def test_every_law_has_a_mutant() -> None:
    assigned = {law for m in MUTANTS.values() for law in m.breaks}
    assert sorted(set(LAWS) - assigned) == []


def test_there_are_at_least_300_mutants_and_60_variants() -> None:
    assert len(MUTANTS) >= 300
    assert len(VARIANTS) >= 60


def test_every_statement_is_unique() -> None:
    statements = [(m.statement, m.operations) for m in MUTANTS.values()]
    assert len(set(statements)) == len(statements)


HELD_IN_16_BITS = {2**11, 2**15, 2**16, int(np.finfo(np.float16).max)}
"""Limits of 16-bit dtypes: the integers of float16, int16, uint16, and float16's largest number."""


@pytest.mark.parametrize("m", MUTANTS.values(), ids=MUTANTS)
def test_numbers_in_a_statement_are_in_the_code_of_the_mutant(m: Mutant) -> None:
    """A diagnosis repeats the statement for any input, so its numbers must be the code's."""
    code = inspect.getsource(inspect.getmodule(m.alteration) or m.alteration)
    written = {int(x) for x in re.findall(r"\b\d+\b", code.replace("_", ""))} | HELD_IN_16_BITS
    counted = [int(x.replace(",", "")) for x in re.findall(r"\d+(?:,\d{3})+", m.statement)]
    assert [x for x in counted if not {x - 1, x, x + 1} & written] == []


def test_names_of_mutants_and_variants_are_unique() -> None:
    with pytest.raises(ValueError, match="two mutants are named"):
        mutant("exp(−e)", replaces="softmax", operations=(Softmax,), breaks=(), source="")(harmless.alteration)
    with pytest.raises(ValueError, match="two variants are named"):
        variant("powers of two", operations=(Softmax,))(type("Same", (Formulas,), {}))


def test_an_unknown_step_or_operation_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected a method of Formulas or Library, such as softmax, .*; got 'sofmax'"
    ):
        mutant("x", replaces="sofmax", operations=(Softmax,), breaks=(), source="", register=False)(harmless.alteration)
    with pytest.raises(ValueError, match="expected Protocols of the contract; got 'softmax'"):
        mutant("x", replaces="softmax", operations=("softmax",), breaks=(), source="", register=False)(
            harmless.alteration
        )


def test_every_operation_has_a_correct_formula() -> None:
    missing = [o.name for o in OPERATIONS.values() if not o.reference_only and not hasattr(Formulas, o.name)]
    assert missing == [], "expected in the class of their chapter in mutants/correct/"


@pytest.mark.parametrize("v", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_described_and_can_be_judged(v: Variant) -> None:
    """``nox -s mutants`` judges variants; this test only checks their entries."""
    assert v.statement
    if reason := v.lacking():
        pytest.skip(reason)
    assert cases(Contract.of(v.backend()), operations=v.operations, dtypes=v.dtypes)


def test_a_variant_passes_every_law() -> None:
    outcome = run_trial(Trial(VARIANTS["sinusoids in double precision"], "quick", 0))
    assert outcome.failures == ()
    assert outcome.evaluations > 0
    assert 0 < outcome.largest <= 1


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if hasattr(Formulas, o.name)])
def test_every_operation_of_the_correct_library_is_right(name: str) -> None:
    """If a correct operation raised, every law would kill its mutants."""
    library = Library("correct")
    subject = Subject(library, Contract.of(library), OPERATIONS[name], "float32", "cpu")
    arguments = sample(subject, np.random.default_rng(0), (2,), queries=5, keys=6, heads=2)
    verdict = judge(name, getattr(library, name)(**arguments.passed), **arguments.passed)
    assert verdict, verdict


def test_every_step_of_the_correct_formulas_is_defined_once() -> None:
    steps = [name for kind in Formulas.__mro__ for name in vars(kind) if not name.startswith("__")]
    assert [name for name, count in Counter(steps).items() if count > 1] == []


def test_the_correct_library_is_correct() -> None:
    correct = Library("correct")
    q = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    assert_within_budgets(correct.call(OPERATIONS["self_attention"], q), "self_attention", q)
    ones = np.ones((3, 4), np.float32)
    grads = correct.vjp("self_attention", {"x": q}, ones)
    assert_gradients_within_budgets((grads["x"],), ones, "self_attention", q)


def test_the_correct_library_leaves_nan_under_the_mask_out_of_gradients() -> None:
    correct, rng = Library("correct"), np.random.default_rng(2)
    q, k, v = (rng.standard_normal((5, 4)).astype(np.float32) for _ in range(3))
    arguments = {"query": q, "key": k, "value": v, "mask": np.arange(5) < np.array([0, 3, 4, 4, 4])[:, None]}
    q[0] = k[4] = v[4] = 0.0
    clean: dict[str, Any] = {name: x.copy() for name, x in arguments.items()}
    ones = np.ones((5, 4), np.float32)
    vjps = [correct.vjp("scaled_dot_product_attention", arguments, ones)]
    q[0] = k[4] = v[4] = np.nan
    vjps.append(correct.vjp("scaled_dot_product_attention", arguments, ones))
    gradients = [(x["query"], x["key"], x["value"]) for x in vjps]
    assert_gradients_within_budgets(gradients, ones, "scaled_dot_product_attention", **clean)


@dataclass(frozen=True)
class Gates(Generic[Array]):
    w: Float[Array, "h h"]
    bias: Float[Array, " h"]


def gated_cell(
    correct: Formulas, state: Any, layers: Any, squared: Callable[[Any], Any] = lambda x: x**2
) -> tuple[Any, Any]:
    """A small cell that uses the functions of an LSTM and of layer normalisation."""
    hidden, cell = state
    for layer in layers:
        gates = np.stack([correct.project(hidden, layer.w), hidden + layer.bias], axis=0)
        opened = 1 / (1 + np.exp(-gates[0]))
        cell = np.where(gates[1] > 0, opened * cell, np.maximum(cell, opened)) + np.tanh(gates[1])
        centred = cell - np.mean(cell, axis=-1, keepdims=True)
        hidden = centred / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + 0.125)
        halves = np.concatenate([hidden[..., 1:], hidden[..., :1]], axis=-1)
        hidden = squared(halves.reshape(*hidden.shape).swapaxes(-1, -2).swapaxes(-1, -2))
    return hidden, cell


@pytest.fixture
def cell() -> Iterator[Library]:
    registered = dict(OPERATIONS)

    @operation("gated_cell", chapter="recurrent", formula="none", sources=(), results="hidden cell")
    class GatedCell(Protocol[Array]):
        """A cell for tests."""

        def __call__(
            self,
            state: tuple[Float[Array, "*#batch n h"], Float[Array, "*#batch n h"]],
            layers: Annotated[tuple[Gates[Array], ...], sizes(count="depth")],
        ) -> tuple[Float[Array, "*batch n h"], Float[Array, "*batch n h"]]: ...

    formulas: Any = type("WithCell", (Formulas,), {"gated_cell": gated_cell})()
    try:
        yield Library("correct", formulas)
    finally:
        _OPERATIONS.clear()
        _OPERATIONS.update(registered)


@pytest.mark.parametrize("has_cotangent", [(True, False), (False, True), (True, True)])
def test_gradients_of_trees_are_named_by_path(cell: Library, has_cotangent: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    state = (rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 4)))
    layers = tuple(Gates(rng.standard_normal((4, 4)), rng.standard_normal(4)) for _ in range(2))
    arguments = {"state": state, "layers": layers}
    cotangent = tuple(rng.standard_normal((2, 3, 4)) if g else None for g in has_cotangent)
    call = getattr(cell, "gated_cell")  # noqa: B009 - an operation that no class declares
    assert [x.shape for x in call(*arguments.values())] == [(2, 3, 4), (2, 3, 4)]
    grads = cell.vjp("gated_cell", arguments, cotangent)
    assert list(grads) == list(flatten(arguments))
    assert list(grads)[2:4] == ["layers[0].w", "layers[0].bias"]
    # error arithmetic has a rule for squares, and none for powers
    formula = partial(gated_cell, Formulas(), squared=np.square)
    assert_gradients_within_budgets(tuple(grads.values()), cotangent, formula, state, layers)


def run_mutants(tmp_path: Path, *, matrix: bool = False, **selected: Any) -> tuple[int, dict[str, Any], str]:
    path = tmp_path / "m.json"
    options: dict[str, Any] = {"mutants": {}, "variants": {}} | selected
    with (tmp_path / "out").open("w") as file:
        console = Console(record=True, width=160, file=file)
        status = judge_mutants("quick", 1, matrix, 0, OutputFile(path, "--json"), console, **options)
    return status, json.loads(path.read_text()), console.export_text()


def test_a_run_without_survivors_succeeds(tmp_path: Path) -> None:
    mutants = {name: MUTANTS[name] for name in ("exp(−e)", "base 1000")}
    variants = {name: VARIANTS[name] for name in ("sinusoids in double precision",)}
    status, report, text = run_mutants(tmp_path, mutants=mutants, variants=variants)
    assert status == 0
    assert report["schema"] == "attnspec-mutants/1"
    assert report["exit_status"] == 0
    assert "2 of 2 killed" in text
    assert "rate is below" in text


def test_a_mutant_that_survives_fails_the_run(tmp_path: Path) -> None:
    status, report, text = run_mutants(tmp_path, mutants={"harmless": harmless, "exp(−e)": MUTANTS["exp(−e)"]})
    assert status == 1
    assert report["exit_status"] == 1
    assert "1 of 2 killed" in text
    assert {m["name"]: m["survived_seeds"] for m in report["mutants"]} == {"harmless": [0], "exp(−e)": []}
    assert report["only_killer"] == {}
    # Survivors come first.
    assert text.index("harmless") < text.index("exp(−e)")


def test_a_law_that_is_wrongly_claimed_fails_the_run(tmp_path: Path) -> None:
    def doubled(correct: Formulas, scores: Numbers) -> Numbers:
        return 2 * Formulas.normalized(correct, scores)

    laws = ("normalization.sums-to-one", "normalization.order-preserved")
    claimed = mutant("claimed", replaces="normalized", operations=(Softmax,), breaks=laws, source="", register=False)
    status, report, text = run_mutants(tmp_path, mutants={"claimed": claimed(doubled)})
    assert status == 1
    assert "1 of 1 killed" in text
    assert report["mutants"][0]["powerless"] == ["normalization.order-preserved"]
    assert "powerless claimed: expected its law normalization.order-preserved to kill it alone" in text


def test_the_matrix_names_the_mutants_that_one_law_alone_kills(tmp_path: Path) -> None:
    mutants = {name: MUTANTS[name] for name in ("exp(−e)", "base 1000")}
    _, report, _ = run_mutants(tmp_path, matrix=True, mutants=mutants)
    laws = {m["name"]: list(m["laws"]) for m in report["mutants"]}
    for name, m in mutants.items():
        assert set(m.breaks) <= set(laws[name])
    alone = {
        law: [name for name in mutants if laws[name] == [law]] for law in {law for of in laws.values() for law in of}
    }
    assert report["only_killer"] == {law: names for law, names in sorted(alone.items()) if names}


def test_an_accused_variant_fails_the_run(tmp_path: Path) -> None:
    wrong = Variant("wrong", ("softmax",), type("Wrong", (Formulas,), {"exponential": lambda self, x: np.exp2(x)}))
    status, report, _ = run_mutants(tmp_path, variants={"wrong": wrong})
    assert status == 1
    assert report["false_alarm_bound"] is None


def test_a_variant_that_cannot_be_tried_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    compiled.library.cache_clear()
    status, report, text = run_mutants(tmp_path, variants={COMPILED.name: COMPILED})
    compiled.library.cache_clear()
    reason = "expected a C compiler among no-such-compiler; got none on the path"
    assert status == 0
    assert report["not_tried"] == {COMPILED.name: reason}
    assert report["variants"] == []
    assert report["false_alarm_bound"] is None
    assert f"not tried {COMPILED.name}: {reason}" in text


def test_a_variant_that_does_not_compile_has_the_compilers_message(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := COMPILED.lacking():
        pytest.skip(reason)
    monkeypatch.setattr(compiled, "SOURCE", "#error no luck")
    compiled.library.cache_clear()
    reason = COMPILED.lacking()
    compiled.library.cache_clear()
    assert "to compile C; got exit status 1" in reason
    assert "no luck" in reason


def test_the_compiled_variant_rounds_as_fused_multiply_adds_do() -> None:
    if reason := COMPILED.lacking():
        pytest.skip(reason)
    rng = np.random.default_rng(4)
    query, key, value = (8 * rng.standard_normal((500, 1, 8)).astype(np.float32) for _ in range(3))
    result = COMPILED.backend().call(OPERATIONS["scaled_dot_product_attention"], query, key, value)
    # Weights of single keys are not all 1, hence their values do not all come back bit by bit.
    assert 0.01 < (result != value).mean() < 0.5
    assert_within_budgets(result, "scaled_dot_product_attention", query, key, value)


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["base 1000"], ["base 1000"]),
        (["base*", "exp(−e)"], ["base 1000", "exp(−e)"]),
        (["a[b]"], ["a[b]"]),
        (["base"], []),
    ],
)
def test_names_are_selected_exactly_or_by_patterns(patterns: list[str], chosen: list[str]) -> None:
    assert matching(patterns, ["base 1000", "exp(−e)", "a[b]", "ab"]) == chosen


@pytest.mark.parametrize("failure", ["dies", "hangs"])
def test_a_lost_worker_does_not_stop_the_others(failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losing.py").write_text(
        "import os\n"
        "from attnspec.conformance.mutants import mutant\n"
        "from attnspec.spec import Softmax\n"
        "@mutant('lost', replaces='softmax', operations=(Softmax,), breaks=(), source='', register=False)\n"
        "def lost(correct, scores, *, mask=None):\n"
        "    '''Does not return.'''\n"
        f"    {'os._exit(3)' if failure == 'dies' else 'while True: pass'}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    losing = reload(import_module("losing"))
    trials = [Trial(losing.lost, "quick", 0), *(Trial(MUTANTS["exp(−e)"], "quick", seed) for seed in range(2))]
    results: list[TrialOutcome] = outcomes(trials, 2, 4.0)
    assert [o.lost for o in results] == [True, False, False]
    assert all(o.failures for o in results[1:])
