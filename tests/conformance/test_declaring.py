"""What was observed and is not declared: found by judging again, put together for all operations, and pasted."""

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import ml_dtypes
import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.explaining.classes import wider_classes
from attnspec.conformance.explaining.declaration import Declaration, declaration, lines
from attnspec.conformance.explaining.refusals import REFUSED, Refusals, refusals, says_unsupported
from attnspec.conformance.explaining.refusals import _Probes as Probes
from attnspec.conformance.explaining.undeclared import Undeclared, undeclared
from attnspec.conformance.inputs.corners import FEATURES, LENGTHS, multiply_adds
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, judge
from attnspec.conformance.judging.profiles import FORMULA, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import violations
from attnspec.conformance.reporting.verdict_page import as_html
from attnspec.conformance.running.messages import PASTE
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

from .test_cli import SCHEMA, attnspec, written

Numbers = np.ndarray[Any, Any]
ATTENTION = "scaled_dot_product_attention"


def attention(
    query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False,
    rounded: Callable[[Numbers], Numbers] = lambda x: x, scale: float = 1.0, masked: float = -np.inf,
) -> Numbers:  # fmt: skip
    """Attention with operands that are rounded, scores that are scaled, and another score of what is masked."""
    allowed = np.ones((query.shape[-2], key.shape[-2]), bool) if mask is None else mask
    if causal:
        allowed = allowed & np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    root = query.dtype.type(scale / np.sqrt(query.shape[-1]))
    with np.errstate(all="ignore"):
        scores = rounded(query) @ np.swapaxes(rounded(key), -1, -2) * root
        scores = np.where(allowed, scores, query.dtype.type(masked))
        weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
        weights /= np.where((total := weights.sum(-1, keepdims=True)) > 0, total, 1)
        # What is masked is left out of the product.
        seen = np.where(np.swapaxes(np.broadcast_to(allowed, weights.shape), -1, -2).any(-1, keepdims=True), value, 0)
        return np.asarray(rounded(weights) @ rounded(value if masked > -np.inf else seen))


def tf32(x: Numbers) -> Numbers:
    """Float32 with 10 bits of mantissa, rounded to nearest."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x0FFF) + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)


def explanation(laws: tuple[str, ...], function: Callable[..., Any] = attention, **changed: Any) -> Undeclared:
    """What explains the violations of an attention."""
    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=partial(function, **changed))
    contract, case = Contract.of(backend), Case(ATTENTION, "float32", laws)
    judging = partial(judge, backend, profile=PROFILES["quick"])
    failed = [r for r in judging(contract, case) if r.status is Status.FAILED]
    assert failed
    subject = Subject(backend, contract, OPERATIONS[ATTENTION], "float32", "cpu")
    under = partial(judging, stop_at_first=True)
    return undeclared(under, contract, case, failed, lambda: refusals(subject, lambda law, example: None))


LAWS = (FORMULA, "semantics.fully_masked", "pooling.gain")


def test_a_choice_explains_the_formula() -> None:
    found = explanation(LAWS, masked=-1e30)
    assert (found.semantics, found.precision, found.limits) == ({"fully_masked": "uniform"}, "", {})
    assert set(found.laws) >= {FORMULA, "semantics.fully_masked"}
    assert set(found.laws.values()) == {"semantics"}


@pytest.mark.slow
def test_roundings_are_of_the_least_class_that_allows_them() -> None:
    found = explanation(LAWS, rounded=tf32)
    assert (found.semantics, found.precision) == ({}, "tf32")
    assert found.laws[FORMULA] == "precision"


def test_a_choice_that_roundings_hide_is_seen_under_their_class() -> None:
    found = explanation(LAWS, rounded=tf32, masked=-1e30)
    assert (found.semantics, found.precision) == ({"fully_masked": "uniform"}, "tf32")
    assert set(found.laws) >= {FORMULA, "semantics.fully_masked"}


def test_no_class_explains_what_is_wrong_on_the_arrays_of_another_law() -> None:
    """The formula holds on its own examples, under any class; it is wrong where a mask has the most dimensions."""

    def wrong(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        output = attention(query, key, value, mask=mask, causal=causal)
        most = max(x.ndim for x in (query, key, value))
        return output if mask is None or mask.ndim <= most else output * output.dtype.type(1.5)

    assert explanation((FORMULA, "operation.broadcasting"), wrong).precision == ""


WRONG: Mapping[str, dict[str, Any]] = {
    "the scores are twice as large": {"scale": 2.0},
    "the scores are a little larger, less than a class allows for": {"scale": 1 + 2.0**-9},
    "errors are far below those of the next class": {"scale": 1 + 2.0**-19},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_wrong_numbers_are_explained_by_nothing(changed: dict[str, Any]) -> None:
    assert explanation((FORMULA, "attention.scale"), **changed) == Undeclared()


def test_what_a_second_call_does_not_show_is_explained_by_nothing() -> None:
    calls: list[bool] = []

    def wrong_at_first(query: Numbers, *given: Numbers, **options: Any) -> Numbers:
        result = attention(query, *given, **options)
        calls.append(bool(result.size and not calls))
        return result + 1 if calls[-1] else result

    assert explanation((FORMULA,), wrong_at_first) == Undeclared()
    assert sum(calls) == 1


def long_ones_refused(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
    """Attention to at most 40 keys."""
    if max(query.shape[-2], key.shape[-2]) > 40:
        raise ValueError(f"sequences of {key.shape[-2]} are not supported")
    return attention(query, key, value, **more)


def test_limits_explain_what_is_refused() -> None:
    found = explanation((FORMULA, "operation.shape"), long_ones_refused)
    assert (found.limits, set(found.laws.values())) == ({"max_length": 40}, {"limits"})


def test_that_keys_alone_must_be_there_is_a_choice_and_no_limit() -> None:
    def wants_keys(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if not key.shape[-2]:
            raise ValueError("the keys must be non-empty")
        return attention(query, key, value, **more)

    found = explanation((FORMULA, "semantics.no_keys"), wants_keys)
    assert (found.semantics, found.limits) == ({"no_keys": "error"}, {})


def test_other_exceptions_are_no_limits() -> None:
    def breaks(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if key.shape[-2] > 40:
            raise IndexError("index 40 is out of bounds")
        return attention(query, key, value, **more)

    assert explanation((FORMULA,), breaks) == Undeclared()


def test_after_a_crash_nothing_is_asked() -> None:
    crashed = Result(ATTENTION, FORMULA, "float32", Status.FAILED, Reason.CRASHED, "ended the process")
    value = replace(crashed, law="attention.scale", reason=Reason.VALUE)
    never: Any = None
    assert undeclared(never, never, never, [crashed, value], never) == Undeclared()


REFUSING: Mapping[str, tuple[str, Callable[..., bool], dict[str, Any]]] = {
    "batches": ("dot_scores", lambda query, key: max(query.ndim, key.ndim) > 3, {"max_batch_dims": 1}),
    "broadcasting": ("dot_scores", lambda query, key: query.shape[:-2] != key.shape[:-2], {"broadcasting": False}),
    "multiples": (
        "dot_scores", lambda query, key: query.shape[-2] % 16 > 0 or key.shape[-2] % 16 > 0, {"multiple_of": 16},
    ),
    "features": ("dot_scores", lambda query, key: query.shape[-1] not in (8, 16), {"head_sizes": (8, 16)}),
    "lengths": ("dot_scores", lambda query, key: key.shape[-2] > 50, {"max_length": 50}),
    "everything": ("dot_scores", lambda query, key: True, {REFUSED: True}),
    "nothing": ("dot_scores", lambda query, key: False, {}),
    "what no limit describes": ("dot_scores", lambda query, key: query.shape[-2] > key.shape[-2], {}),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "refuses", "limits"), REFUSING.values(), ids=REFUSING)
def test_what_is_refused_is_described_by_limits(
    operation: str, refuses: Callable[..., bool], limits: dict[str, Any]
) -> None:
    def call(*arguments: Numbers) -> Any:
        if refuses(*arguments):
            raise NotImplementedError
        return getattr(reference, operation)(*arguments)

    backend = SimpleNamespace(name="mine", **{operation: call})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")
    expected = Refusals(everything=True) if REFUSED in limits else Refusals(limits=limits, taken=True)
    assert refusals(subject, lambda law, example: None) == expected


MOST_WORK = 2.0**30
"""Multiply-adds of a probe, about a second."""


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if not o.reference_only])
def test_no_probe_is_large_whatever_the_operation_has(name: str) -> None:
    backend = SimpleNamespace(name="mine", **{name: getattr(reference, name)})
    operation = OPERATIONS[name]
    probes = Probes(Subject(backend, Contract.of(backend), operation, "float32", "cpu"), lambda law, example: None)
    length, features = max(probes.length, 1), max(probes.width, 1)
    for given in (probes.plain(max(LENGTHS), features), probes.plain(length, max(FEATURES))):
        assert multiply_adds(given.sizes, given.batch, operation) <= MOST_WORK
        assert sum(x.size for x in given.arrays.values()) <= 2**24


def test_a_grid_that_is_refused_is_looked_into_at_once() -> None:
    def gate(x: Numbers, gating: Numbers, parameters: Any) -> Any:
        if x.shape[-4:-1] != gating.shape[-4:-1]:
            raise NotImplementedError("gating of another grid is not supported")
        sizes.append(x.size)
        return reference.attention_gate(x, gating, parameters)

    sizes: list[int] = []
    backend = SimpleNamespace(name="mine", attention_gate=gate)
    subject = Subject(backend, Contract.of(backend), OPERATIONS["attention_gate"], "float32", "cpu")
    # Batches broadcast: every input in which they do has grids that differ, too.
    assert refusals(subject, lambda law, example: None) == Refusals(taken=True)
    assert max(sizes) <= 2**15
    # No limit says that grids must be equal. The violation has the backend's own message, and nothing is proposed.
    contract, case = Contract.of(backend), Case("attention_gate", "float32", (FORMULA,))
    judging = partial(judge, backend, profile=PROFILES["quick"])
    (failed,) = judging(contract, case)
    assert failed.message.startswith("raised NotImplementedError: gating of another grid is not supported")
    under = partial(judging, stop_at_first=True)
    seen = refusals(subject, lambda law, example: None)
    assert undeclared(under, contract, case, [failed], lambda: seen) == Undeclared()


def test_batches_whose_shapes_do_not_fit_are_not_broadcast() -> None:
    def call(query: Numbers, key: Numbers) -> Any:
        flat = [x.reshape(int(np.prod(query.shape[:-2])), *x.shape[-2:]) for x in (query, key)]
        return reference.dot_scores(*flat).reshape(*query.shape[:-1], key.shape[-2])

    backend = SimpleNamespace(name="mine", dot_scores=call)
    subject = Subject(backend, Contract.of(backend), OPERATIONS["dot_scores"], "float64", "cpu")
    assert refusals(subject, lambda law, example: None) == Refusals(taken=True, limits={"broadcasting": False})


def test_shapes_that_do_not_fit_without_broadcasting_are_no_limit() -> None:
    def breaks(query: Numbers, key: Numbers, value: Numbers, **more: Any) -> Numbers:
        if key.ndim > 2:
            raise ValueError("cannot reshape array of size 6 into shape (2,2)")
        return attention(query, key, value, **more)

    assert explanation((FORMULA,), breaks) == Undeclared()


def test_heads_that_divide_the_width_are_observed() -> None:
    def call(query: Numbers, key: Numbers, value: Numbers, w_q: Numbers, *weights: Numbers) -> Any:
        heads, part, width = w_q.shape
        if not (heads * part == width == key.shape[-1] == value.shape[-1] and part == weights[1].shape[1]):
            raise ValueError("the width must be divisible by the heads")
        return reference.multi_head_attention(query, key, value, w_q, *weights)

    backend = SimpleNamespace(name="mine", multi_head_attention=lambda *given, **more: call(*given))
    subject = Subject(backend, Contract.of(backend), OPERATIONS["multi_head_attention"], "float64", "cpu")
    found = refusals(subject, lambda law, example: None)
    assert (found.everything, found.limits) == (False, {"divided_heads": True})


def test_a_feature_that_is_refused_is_left_out() -> None:
    (name, feature), *_ = ((o.name, f) for o in OPERATIONS.values() for f in o.features if "=" in f)
    path, _, choice = feature.partition("=")

    def call(*arguments: Any, **more: Any) -> Any:
        if more.get(path) == choice:
            raise NotImplementedError
        return getattr(reference, name)(*arguments, **more)

    backend = SimpleNamespace(name="mine", **{name: call})
    subject = Subject(backend, Contract.of(backend), OPERATIONS[name], "float64", "cpu")
    found = refusals(subject, lambda law, example: None)
    assert list(found.limits) == ["features"]
    assert set(OPERATIONS[name].features) - set(found.limits["features"]) == {feature}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("NotImplementedError", True),
        ("RuntimeError: \"addmm\" not implemented for 'Half'", True),
        ("ValueError: head_dim 300 is not supported", True),
        ("RuntimeError: this kernel only supports 16 bits", True),
        ("ValueError: the length must be divisible by 16", True),
        ("ValueError: sequence too long", True),
        ("AssertionError: query should be unbatched 2D or batched 3D tensor but received 4-D query tensor", True),
        ("IndexError: index 3 is out of bounds", False),
        ("RuntimeError: output with shape [1] doesn't match the broadcast shape [3]", False),
        ("TypeError: unexpected keyword argument 'mask'", False),
    ],
)
def test_what_says_that_it_is_not_supported(message: str, says: bool) -> None:
    assert says_unsupported(message) == says


def test_classes_are_tried_from_the_least() -> None:
    assert wider_classes("ieee64", "float64")[:2] == ["ieee64+one-pass-variance", "ieee32-float64"]
    names = wider_classes("mixed-bfloat16", "bfloat16")
    assert names.index("prescaled-bfloat16") < names.index("eager-bfloat16") < names.index("eager-bfloat16+fast-tanh")
    assert "mixed-bfloat16" not in names
    assert not [name for name in names if name.startswith("e4m3") or "truncating" in name]
    assert "mixed-float16" not in wider_classes("prescaled-float16", "float16")


def bfloat16(x: Numbers) -> Numbers:
    """The nearest numbers of bfloat16, in float32."""
    return np.asarray(np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32))


def half_tensors(query: Numbers, key: Numbers, value: Numbers, *, scaled_first: bool, **options: Any) -> Numbers:
    """Attention in bfloat16 whose scores are stored, or only whose queries are scaled before the product."""
    q, k, v = (np.asarray(x, np.float32) for x in (query, key, value))
    root = np.float32(q.shape[-1] ** -0.5)
    scores = (
        bfloat16(q * root) @ k.swapaxes(-1, -2) if scaled_first else bfloat16(bfloat16(q @ k.swapaxes(-1, -2)) * root)
    )
    mask, causal = options.get("mask"), options.get("causal")
    allowed = np.ones(scores.shape[-2:], bool) if mask is None else mask
    allowed = allowed & np.tri(*scores.shape[-2:]).astype(bool) if causal else allowed
    scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e30))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(bfloat16(weights / np.where(total > 0, total, 1)) @ v).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(("scaled_first", "name"), [(False, "eager-bfloat16"), (True, "prescaled-bfloat16")])
def test_the_class_that_is_proposed_is_that_of_the_rounding(scaled_first: bool, name: str) -> None:
    """Both explain stored scores; but a query over √16 is exact, and no rounding of it explains anything there."""
    backend = SimpleNamespace(
        name="mine",
        limits={"dtypes": ("bfloat16",)},
        scaled_dot_product_attention=partial(half_tensors, scaled_first=scaled_first),
    )
    contract, case = Contract.of(backend), Case(ATTENTION, "bfloat16", (FORMULA, "attention.magnitudes"))
    judging = partial(judge, backend, profile=PROFILES["quick"])
    failed = [r for r in judging(contract, case) if r.status is Status.FAILED]
    assert failed
    under = partial(judging, stop_at_first=True)
    assert undeclared(under, contract, case, failed, lambda: Refusals()).precision == name


# All together ---------------------------------------------------------------------------------------------------------

PROVIDED = ("scaled_dot_product_attention", "self_attention", "dot_scores", "softmax")


def contract(**declared: Any) -> Contract:
    """What a backend with these operations declares."""
    functions = {name: getattr(reference, name) for name in PROVIDED}
    return Contract.of(SimpleNamespace(name="mine", **functions, **declared))


def verdicts(*operations: str, status: Status = Status.FAILED) -> list[Result]:
    """The formula of these operations at two dtypes."""
    return [Result(o, FORMULA, d, status, "value", "") for o in operations for d in ("float64", "float32")]


def found(kind: str, change: Any) -> dict[str, Any]:
    """An explanation of the formula."""
    return Undeclared(**{kind: change}, laws={FORMULA: kind}).as_json()


def together(explanations: Mapping[str, Any], results: list[Result] | None = None, **declared: Any) -> Declaration:
    """One declaration of these explanations."""
    return declaration(contract(**declared), verdicts(*PROVIDED) if results is None else results, explanations)


NAN, HIDDEN = found("semantics", {"no_keys": "nan"}), found("semantics", {"attendable_nan": "hidden"})


def test_what_all_operations_choose_is_said_once() -> None:
    given = {f"{o}-{d}": NAN for o in PROVIDED[:2] for d in ("float64", "float32")}
    whole = together(given)
    assert whole.attributes == {"semantics": {"no_keys": "nan"}}
    assert whole.text == 'semantics = {"no_keys": "nan"}'
    assert set(whole.explained) == {(o, FORMULA, d) for o in PROVIDED[:2] for d in ("float64", "float32")}
    assert list(lines(whole.explained)) == [
        "explained by semantics no_keys = nan: 4 laws of scaled_dot_product_attention, self_attention"
    ]


def test_what_operations_choose_differently_is_said_by_operation() -> None:
    given = {"self_attention-float64": NAN, "softmax-float32": HIDDEN}
    assert together(given).attributes == {
        "semantics": {"self_attention": {"no_keys": "nan"}, "softmax": {"attendable_nan": "hidden"}}
    }
    present = {"repeatability": "within-budget"}
    assert together(given, semantics=present).attributes["semantics"] == {
        "self_attention": {"no_keys": "nan", **present},
        "softmax": {"attendable_nan": "hidden", **present},
        "*": present,
    }


def test_what_a_backend_declares_already_is_kept() -> None:
    given = {f"{o}-float64": NAN for o in PROVIDED[:2]}
    assert together(given, semantics={"repeatability": "within-budget"}).attributes == {
        "semantics": {"no_keys": "nan", "repeatability": "within-budget"}
    }
    assert together({}, semantics={"no_keys": "nan"}) == Declaration()


def test_dtypes_that_contradict_each_other_explain_nothing() -> None:
    other = Result("self_attention", "semantics.no_keys", "float32", Status.PASSED, observed="zero")
    whole = together({"self_attention-float64": NAN}, [*verdicts("self_attention"), other])
    assert (whole.attributes, whole.explained) == ({}, {})
    assert not whole


def test_a_choice_that_allows_the_normative_one_is_not_contradicted_by_it() -> None:
    given = {"self_attention-float64": found("semantics", {"repeatability": "within-budget"})}
    other = Result("self_attention", "semantics.repeatability", "float32", Status.PASSED, observed="bitwise")
    whole = together(given, [*verdicts("self_attention"), other])
    assert whole.attributes == {"semantics": {"self_attention": {"repeatability": "within-budget"}}}


def test_classes_are_said_by_dtype_or_by_operation() -> None:
    tf = found("precision", "tf32")
    assert together({f"{o}-float32": tf for o in PROVIDED}).attributes == {"precision": {"float32": "tf32"}}
    one = together({"dot_scores-float32": tf})
    assert one.attributes == {"precision": {"dot_scores": {"float32": "tf32"}}}
    assert list(lines(one.explained)) == ["explained by precision tf32: 1 law of dot_scores"]


def test_limits_are_those_of_all_operations() -> None:
    given = {
        "dot_scores-float64": found("limits", {"max_length": 40, "head_sizes": [8, 16], "multiple_of": 4}),
        "softmax-float64": found("limits", {"max_length": 64, "head_sizes": [16, 32], "multiple_of": 6}),
        "softmax-float32": found("limits", {"broadcasting": False, "max_batch_dims": 1, "divided_heads": True}),
    }
    whole = together(given, limits={"max_length": 50})
    assert whole.attributes["limits"] == {
        "head_sizes": (16,), "multiple_of": 12, "max_length": 40, "max_batch_dims": 1, "broadcasting": False,
        "divided_heads": True,
    }  # fmt: skip
    assert ast.literal_eval(whole.text.removeprefix("limits = ")) == whole.attributes["limits"]


def test_a_dtype_that_nothing_supports_is_left_out() -> None:
    nothing = found("limits", {REFUSED: True})
    held = verdicts(*PROVIDED, status=Status.PASSED)
    results = [r for r in held if r.dtype == "float64"] + [r for r in verdicts(*PROVIDED) if r.dtype == "float32"]
    whole = together({f"{o}-float32": nothing for o in PROVIDED}, results)
    assert whole.attributes == {"limits": {"dtypes": ("float64",)}}
    one = together({"softmax-float32": nothing}, results)
    assert one.attributes == {"limits": {"dtypes_by_operation": {"softmax": ("float64",)}}}
    assert list(lines(one.explained)) == ["explained by limits: the dtype: 1 law of softmax"]


def test_limits_that_leave_nothing_are_none_in_words() -> None:
    whole = together({"softmax-float32": found("limits", {"gradients": (), "max_length": 40})})
    assert list(lines(whole.explained)) == [
        "explained by limits gradients = none and max_length = 40: 1 law of softmax"
    ]


def test_an_operation_that_supports_no_dtype_is_not_declared_away() -> None:
    nothing = found("limits", {REFUSED: True})
    whole = together({f"softmax-{d}": nothing for d in ("float64", "float32")})
    assert (whole.attributes, whole.explained) == ({}, {})


def test_the_declaration_of_the_documentation_is_understood() -> None:
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    lines_ = page.partition("### What a run has observed")[2].split("```\n")[1].splitlines()
    declared = {name: ast.literal_eval(value) for name, value in (line.split(" = ") for line in lines_)}
    assert set(declared) == {"semantics", "precision", "limits"}
    assert contract(**declared).limits.max_length == 100


def test_a_report_folds_what_is_explained_and_ends_with_the_declaration() -> None:
    results = verdicts("self_attention", "softmax")
    whole = together({f"self_attention-{d}": NAN for d in ("float64", "float32")}, results)
    report = Report(contract(), Settings(), tuple(results), 1.0, declaration=whole)
    assert report.verdict == "violates"
    texts = [text.plain for text in violations(report)]
    assert texts[-1] == "explained by semantics no_keys = nan: 2 laws of self_attention"
    assert not [text for text in texts[:-1] if "self_attention" in text]
    document = json.loads(report.as_text())
    jsonschema.validate(document, SCHEMA)
    assert document["declaration"] == {"semantics": whole.attributes["semantics"]}
    causes = [r["explained_by"] for r in document["results"]]
    assert causes == ["semantics no_keys = nan"] * 2 + [None] * 2
    assert PASTE in " ".join(as_html(report).split())


CODE = """
import numpy as np
name = "mine"
def rounded(x):
    return ((x + 0).view(np.uint32) + 0x1000 & 0xFFFFE000).astype(np.uint32).view(np.float32)
def dot_scores(query, key):
    if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ValueError("sizes differ")
    if query.dtype == np.float64:
        raise TypeError("float64 is not supported")
    if max(query.shape[-2], key.shape[-2]) > 40:
        raise ValueError("more than 40 are not supported")
    return rounded(query) @ np.swapaxes(rounded(key), -1, -2)
"""


@pytest.mark.slow
def test_a_second_run_with_what_is_pasted_names_true_defects_only(tmp_path: Path) -> None:
    call = ("check", written(tmp_path, CODE), "--operation", "dot_scores", "--json", "r.json", "--workers", "2")
    first = attnspec(*call, folder=tmp_path)
    assert first.returncode == 1, first.stderr
    pasted = first.stdout.partition(PASTE)[2]
    assert pasted.split("\n\n")[1].splitlines() == [
        'precision = {"float32": "tf32"}',
        'limits = {"dtypes": ("float32",), "max_length": 40}',
    ]
    assert "explained by precision tf32: " in first.stdout
    assert "explained by limits max_length = 40 and dtypes = float32: " in first.stdout
    assert "is violated by" not in first.stdout
    document = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(document, SCHEMA)
    assert all(r["explained_by"] for r in document["results"] if r["status"] == "failed")
    written(tmp_path, CODE + pasted)
    second = attnspec(*call, folder=tmp_path)
    assert second.returncode == 0, second.stdout
    assert PASTE not in second.stdout
