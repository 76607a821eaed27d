"""Counterexamples are reduced along named sizes, in any tree of arguments."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.reduction import reduce_arguments, reduce_to_zeros
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import sample
from attnspec.conformance.mutants import MUTANTS
from attnspec.spec import OPERATIONS, Limits
from attnspec.spec.contract.tree import flatten, map_tree

ORACLE, *_ = CHECKS["operation.oracle"]


def check_of_law(law: str, name: str) -> Check:
    (check,) = (check for check in CHECKS[law] if check.function.__name__ == name)
    return check


WrongFunction = Callable[..., Any]


class Backend:
    """The reference with one operation that goes wrong on some inputs."""

    name = "wrong"

    def __init__(self, operation: str, wrong: WrongFunction, limits: Mapping[str, Any]) -> None:
        self.limits = Limits(dtypes=("float64",), **limits)
        self.semantics: dict[str, str] = {}
        setattr(self, operation, wrong)


def subject_of(operation: str, wrong: WrongFunction, **limits: Any) -> Subject:
    backend = Backend(operation, wrong, limits)
    return Subject(backend, Contract.of(backend), OPERATIONS[operation], "float64", "cpu")


def first_failure(subject: Subject, work: float = 2.0**14) -> tuple[Arguments, Any, int]:
    """The first corner on which the oracle's law fails."""
    for seed in range(4):
        for example in corners(subject.operation, subject.limits, seed=seed, most=60, work=work):
            arguments = example.arguments(subject.operation, "float64")
            violation, *_ = attempt(subject, ORACLE, arguments, example.seed)
            if violation is not None:
                return arguments, violation, example.seed
    raise AssertionError("no corner shows the defect")


def smallest(subject: Subject) -> Arguments:
    """The reduced counterexample of the oracle's law."""
    arguments, violation, seed = first_failure(subject)
    marks: list[str] = []
    smaller, smaller_violation = reduce_arguments(
        subject, ORACLE, arguments, violation, seed, lambda law, what: marks.append(law)
    )
    assert smaller_violation.reason == violation.reason
    assert set(marks) == {"operation.oracle"}
    repeated, *_ = attempt(subject, ORACLE, smaller, seed)
    assert repeated is not None
    return smaller


def wrong_beyond(keys: int) -> WrongFunction:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        result[..., keys:] += 1.0
        return result

    return scores


@pytest.mark.parametrize("keys", [0, 2, 64])
def test_a_defect_beyond_a_size_keeps_that_size(keys: int) -> None:
    smaller = smallest(subject_of("dot_scores", wrong_beyond(keys)))
    assert (smaller.size("n"), smaller.size("m"), smaller.size("d")) == (1, keys + 1, 1)
    assert smaller.batch == ()
    assert not any(x.any() for x in smaller.arrays.values())


def test_reduced_sizes_stay_within_the_limits() -> None:
    smaller = smallest(subject_of("dot_scores", wrong_beyond(2), multiple_of=4, head_sizes=(8, 16)))
    assert (smaller.size("n"), smaller.size("m"), smaller.size("d")) == (4, 4, 8)


def test_options_that_do_not_matter_are_left_out() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        return 2 * reference.dot_product_attention(query, key, value, mask=mask, causal=causal)

    smaller = smallest(subject_of("dot_product_attention", attention))
    assert smaller.mask is None
    assert not smaller.causal
    assert np.count_nonzero(smaller.array("value")) == 1
    assert smaller.array("value").max() in (1.0, 2.0, 8.0, 64.0)  # the numbers that a reduction tries


def test_a_mask_that_matters_stays_and_hides_one_pair() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        return reference.dot_product_attention(query, key, value, causal=causal)

    smaller = smallest(subject_of("dot_product_attention", attention))
    assert smaller.mask is not None
    assert np.count_nonzero(~smaller.mask) == 1


def test_decays_of_a_reduced_recurrence_stay_at_most_0() -> None:
    def decayed_late(*arrays: Numbers, decay: Any = None, beta: Any = None, scale: Any = None) -> Any:
        output, final = reference.linear_attention(*arrays, decay=decay, beta=beta, scale=scale)
        return output, final if decay is None else final * np.exp(decay[..., -1:, :]).swapaxes(-1, -2)

    decay = smallest(subject_of("linear_attention", decayed_late)).array("decay")
    assert decay.size == 1
    assert -8 <= decay.item() < 0


def test_trees_are_reduced_by_path() -> None:
    def lstm_cell(x: Any, state: Any, parameters: Any) -> Any:
        flat = flatten(parameters)
        swapped = {"w_xi": flat["w_xf"], "w_xf": flat["w_xi"]}
        return reference.lstm_cell(x, state, map_tree(parameters, lambda path, w: swapped.get(path, w)))

    smaller = smallest(subject_of("lstm_cell", lstm_cell))
    assert (smaller.size("d"), smaller.size("h")) == (1, 1)
    paths = {path for path, x in smaller.arrays.items() if x.any()}
    assert "x" in paths
    assert paths & {"parameters.w_xi", "parameters.w_xf"}
    assert not paths & {"parameters.w_hi", "parameters.w_hf", "parameters.w_ho", "parameters.w_hc", "state[0]"}


def test_rows_and_columns_of_a_grid_are_reduced_in_all_arguments() -> None:
    def patch_embedding(image: Any, parameters: Any) -> Any:
        result = reference.patch_embedding(image, parameters)
        result[..., 5:, :] += 1.0
        return result

    smaller = smallest(subject_of("patch_embedding", patch_embedding))
    # The defect needs five patches after the class token; no row or column of 2 × 3 patches can be cut alone.
    assert sorted((smaller.size("rows"), smaller.size("columns"))) in ([1, 5], [2, 3])
    assert (smaller.size("patch"), smaller.size("channels"), smaller.size("d")) == (1, 1, 1)


def test_an_option_that_matters_stays() -> None:
    def encoder_layer(x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        return reference.encoder_layer(x, parameters, mask=mask, norm="post")

    smaller = smallest(subject_of("encoder_layer", encoder_layer))
    assert smaller["norm"] == "pre"
    assert smaller.mask is None
    assert smaller.size("n") == 1


@pytest.mark.parametrize("matters", [False, True])
def test_zero_has_a_sign_only_where_it_matters(matters: bool) -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        return reference.dot_scores(query, key) + float(np.signbit(query).any() or not matters)

    subject = subject_of("dot_scores", scores)
    (example, *_) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)
    example_arguments = example.arguments(subject.operation, "float64")
    arguments = example_arguments.replaced({leaf.path: np.full_like(x, -0.0) for leaf, x in example_arguments.floats})
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    smaller, _ = reduce_arguments(subject, ORACLE, arguments, violation, 0, lambda law, what: None)
    assert not any(x.any() for _, x in smaller.floats)
    assert [bool(np.signbit(x).any()) for _, x in smaller.floats] == [matters, False]


def test_laws_that_make_their_own_inputs_get_the_simplest_model() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        if min(query.ndim, key.ndim) < 3 <= max(query.ndim, key.ndim):
            raise ValueError("expected equal ranks")
        return reference.dot_scores(query, key)

    subject, check = (
        subject_of("dot_scores", scores),
        check_of_law("operation.broadcast-equals-repeat", "fewer_dimensions"),
    )
    (example, *_) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)
    arguments = example.arguments(subject.operation, "float64")
    violation, *_ = attempt(subject, check, arguments, 0)
    assert violation is not None
    smaller, smaller_violation = reduce_to_zeros(subject, check, arguments, violation, 0, lambda law, what: None)
    assert set(smaller.sizes.values()) == {1}
    assert smaller_violation.message == violation.message


@pytest.mark.parametrize(
    ("name", "law", "least", "most"),
    [
        ("last 8 value columns of a half-full tile are 0", "sizes.model-sizes", 40, 50),
        ("features of queries beyond the 128th ignored", "sizes.model-sizes", 2 * 129, 400),
        ("gradient of the sinks from the last row only", "training.options-affect-gradients", 3, 10),
        ("values multiplied by an overflowing reciprocal", "attention.extreme-magnitudes", 3, 3),
    ],
)
def test_where_the_formula_fails_on_the_input_of_a_law_it_is_reduced(
    name: str, law: str, least: int, most: int
) -> None:
    mutant = MUTANTS[name]
    backend = mutant.backend()
    contract = Contract.of(backend)
    case = next(c for c in cases(contract, operations=mutant.operations[:1], laws=(law,)) if c.dtype == mutant.dtype)
    (result,) = judge(backend, contract, case, PROFILES["quick"])
    assert (result.law, result.reason) == (law, Reason.VALUE)
    assert "; on the input below " in result.message
    assert result.counterexample is not None
    numbers = sum(np.size(x) for x in result.counterexample["arguments"].values() if isinstance(x, list))
    assert least <= numbers <= most
    formula = "operation.gradient" if "gradient of" in result.message else "operation.oracle"
    assert f"'{formula}'" in result.counterexample["snippet"] or "reference." in result.counterexample["snippet"]


def test_heads_that_divide_the_width_are_reduced_together_with_it() -> None:
    def wrong(*args: Numbers, **options: Any) -> Any:
        heads, part, _ = args[3].shape
        return reference.multi_head_attention(*args, **options) + float(heads > 1 and part > 1)

    smaller = smallest(subject_of("multi_head_attention", wrong, divided_heads=True))
    sizes = {name: smaller.size(name) for name in ("heads", "p_q", "p_v", "d_q", "d_k", "d_v", "p_o")}
    assert sizes == {"heads": 2, "p_q": 2, "p_v": 2, "d_q": 4, "d_k": 4, "d_v": 4, "p_o": 4}


def test_heads_of_every_layer_are_reduced_together() -> None:
    def wrong(x: Numbers, layers: Any, **options: Any) -> Any:
        heads = max([0, *(layer.attention.w_q.shape[0] for layer in layers)])
        return reference.encoder_stack(x, layers, **options) + float(heads > 1)

    smaller = smallest(subject_of("encoder_stack", wrong, divided_heads=True))
    heads = {x.shape[0] for leaf, x in smaller.leaf_arrays if len(leaf.core) == 3 and not leaf.batched}
    assert heads == {2}
    assert smaller.size("d") == 2


def test_sizes_that_must_be_equal_are_reduced_together() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        return result + 1.0 if query.shape[-2] == key.shape[-2] > 2 else result

    smaller = smallest(subject_of("dot_scores", scores))
    assert (smaller.size("n"), smaller.size("m"), smaller.size("d")) == (3, 3, 1)


def test_three_equal_sizes_are_reduced_together_within_the_limits() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        return result + 1.0 if query.shape[-2] == key.shape[-2] == query.shape[-1] else result

    smaller = smallest(subject_of("dot_scores", scores, multiple_of=4, head_sizes=(6, 8, 16)))
    assert {smaller.size("n"), smaller.size("m"), smaller.size("d")} == {8}


OPERATIONS_WITH_FEATURES = [o.name for o in OPERATIONS.values() if o.features and not o.reference_only]


@pytest.mark.parametrize("name", OPERATIONS_WITH_FEATURES)
def test_no_reduction_uses_a_feature_that_the_backend_lacks(name: str) -> None:
    operation = OPERATIONS[name]
    paths = {feature.partition("=")[0] for feature in operation.features if "=" not in feature}

    def wrong(*arrays: Any, **options: Any) -> Any:
        raise ValueError("wrong")

    subject = subject_of(name, wrong, features=())
    check = check_of_law("operation.rejection", "rejection")
    example = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)[0]
    arguments = example.arguments(subject.operation, "float64")
    violation = Violation("raised", reason=Reason.RAISED, arguments=arguments)
    for law, reduction in ((ORACLE, reduce_arguments), (check, reduce_to_zeros)):
        smaller, _ = reduction(subject, law, arguments, violation, 0, lambda law, what: None)
        assert not [path for path in paths & smaller.keys() if smaller[path] != operation.defaults.get(path)]


def test_a_declared_refusal_is_no_counterexample() -> None:
    def encoding(n: int, d: int) -> Numbers:
        if d % 2:
            raise ValueError("odd")
        if d > 2:
            raise RuntimeError("wide")
        return reference.sinusoidal_positional_encoding(n, d)

    backend = Backend("sinusoidal_positional_encoding", encoding, {})
    backend.semantics = {"odd_encoding": "error"}
    operation = OPERATIONS["sinusoidal_positional_encoding"]
    subject = Subject(backend, Contract.of(backend), operation, "float64", "cpu")
    arguments = Arguments(operation, {"n": 7, "d": 16})
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    assert "wide" in violation.message
    smaller, smaller_violation = reduce_arguments(subject, ORACLE, arguments, violation, 0, lambda law, what: None)
    assert (smaller.size("n"), smaller.size("d")) == (1, 4)
    assert "wide" in smaller_violation.message


def test_the_simplest_model_of_a_law_is_not_one_that_the_backend_refuses() -> None:
    def encoding(n: int, d: int) -> Numbers:
        if d % 2:
            raise ValueError("odd")
        return reference.sinusoidal_positional_encoding(n, d) + np.random.default_rng().random()

    backend = Backend("sinusoidal_positional_encoding", encoding, {})
    backend.semantics = {"odd_encoding": "error"}
    operation, check = OPERATIONS["sinusoidal_positional_encoding"], CHECKS["semantics.repeatability"][0]
    subject = Subject(backend, Contract.of(backend), operation, "float64", "cpu")
    arguments = Arguments(operation, {"n": 7, "d": 16})
    violation, *_ = attempt(subject, check, arguments, 0)
    assert violation is not None
    smaller, _ = reduce_to_zeros(subject, check, arguments, violation, 0, lambda law, what: None)
    assert smaller.size("d") == 2


def test_a_large_error_is_not_reduced_to_a_rounding() -> None:
    """Getting 16 for 256 shows more than 1.001 for 1: the relative error is 0.9375."""
    subject = subject_of("dot_scores", lambda q, k: np.clip(1.001 * reference.dot_scores(q, k), -16, 16))
    arguments = Arguments(subject.operation, {"query": np.ones((1, 256)), "key": np.ones((1, 256))})
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    assert violation.difference == 0.9375
    _, smaller_violation = reduce_arguments(subject, ORACLE, arguments, violation, 0, lambda law, what: None)
    assert smaller_violation.difference >= 0.1


def test_counterexamples_with_an_empty_batch_are_reduced() -> None:
    def attend(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Any:
        if 0 in query.shape[:-2]:
            raise ValueError("empty")
        return reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    subject = subject_of("scaled_dot_product_attention", attend)
    arguments = sample(subject, np.random.default_rng(0), (2, 0))
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    smaller, _ = reduce_arguments(subject, ORACLE, arguments, violation, 0, lambda law, example: None)
    assert (smaller.batch, smaller.size("n"), smaller.size("m")) == ((0,), 1, 1)
