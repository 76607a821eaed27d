"""Counterexamples are reduced along named sizes, whatever trees the arguments are, and stay counterexamples."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import attempt
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.reduction import reduced, simplest
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.spec import OPERATIONS, Limits
from attnspec.spec.contract.tree import flatten, mapped

ORACLE, *_ = CHECKS["operation.oracle"]


def made(law: str, name: str) -> Check:
    """The check of a law by the name of its function."""
    (check,) = (check for check in CHECKS[law] if check.function.__name__ == name)
    return check


Wrong = Callable[..., Any]


class Backend:
    """The reference with one operation that goes wrong on some inputs."""

    name = "wrong"

    def __init__(self, operation: str, wrong: Wrong, limits: Mapping[str, Any]) -> None:
        self.limits = Limits(dtypes=("float64",), **limits)
        self.semantics: dict[str, str] = {}
        setattr(self, operation, wrong)


def subject_of(operation: str, wrong: Wrong, **limits: Any) -> Subject:
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
    """The counterexample of the oracle's law, as far as it is reduced."""
    arguments, violation, seed = first_failure(subject)
    marks: list[str] = []
    found, still = reduced(subject, ORACLE, arguments, violation, seed, lambda law, what: marks.append(law))
    assert still.reason == violation.reason
    assert set(marks) == {"operation.oracle"}
    again, *_ = attempt(subject, ORACLE, found, seed)
    assert again is not None
    return found


def wrong_beyond(keys: int) -> Wrong:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        result[..., keys:] += 1.0
        return result

    return scores


@pytest.mark.parametrize("keys", [0, 2, 64])
def test_a_defect_beyond_a_size_needs_that_size(keys: int) -> None:
    found = smallest(subject_of("dot_scores", wrong_beyond(keys)))
    assert (found.size("n"), found.size("m"), found.size("d")) == (1, keys + 1, 1)
    assert found.batch == ()
    assert not any(x.any() for x in found.arrays.values())


def test_sizes_stay_within_the_limits() -> None:
    found = smallest(subject_of("dot_scores", wrong_beyond(2), multiple_of=4, head_sizes=(8, 16)))
    assert (found.size("n"), found.size("m"), found.size("d")) == (4, 4, 8)


def test_what_need_not_be_given_is_left_out() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        return 2 * reference.dot_product_attention(query, key, value, mask=mask, causal=causal)

    found = smallest(subject_of("dot_product_attention", attention))
    assert found.mask is None
    assert not found.causal
    assert np.count_nonzero(found.array("value")) == 1
    assert found.array("value").max() in (1.0, 2.0, 8.0, 64.0)


def test_a_mask_that_matters_stays_and_is_as_simple_as_it_can_be() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, causal: bool = False) -> Any:
        return reference.dot_product_attention(query, key, value, causal=causal)

    found = smallest(subject_of("dot_product_attention", attention))
    assert found.mask is not None
    assert np.count_nonzero(~found.mask) == 1


def test_trees_are_reduced_by_path() -> None:
    def lstm_cell(x: Any, state: Any, parameters: Any) -> Any:
        flat = flatten(parameters)
        swapped = {"w_xi": flat["w_xf"], "w_xf": flat["w_xi"]}
        return reference.lstm_cell(x, state, mapped(parameters, lambda path, w: swapped.get(path, w)))

    found = smallest(subject_of("lstm_cell", lstm_cell))
    assert (found.size("d"), found.size("h")) == (1, 1)
    given = {path for path, x in found.arrays.items() if x.any()}
    assert "x" in given
    assert given & {"parameters.w_xi", "parameters.w_xf"}
    assert not given & {"parameters.w_hi", "parameters.w_hf", "parameters.w_ho", "parameters.w_hc", "state[0]"}


def test_places_of_a_grid_are_cut_from_all_that_counts_them() -> None:
    def patch_embedding(image: Any, parameters: Any) -> Any:
        result = reference.patch_embedding(image, parameters)
        result[..., 5:, :] += 1.0
        return result

    found = smallest(subject_of("patch_embedding", patch_embedding))
    assert sorted((found.size("rows"), found.size("columns"))) in ([1, 5], [2, 3])
    assert (found.size("patch"), found.size("channels"), found.size("d")) == (1, 1, 1)


def test_an_option_that_matters_stays() -> None:
    def encoder_layer(x: Any, parameters: Any, *, mask: Any = None, norm: str = "post") -> Any:
        return reference.encoder_layer(x, parameters, mask=mask, norm="post")

    found = smallest(subject_of("encoder_layer", encoder_layer))
    assert found["norm"] == "pre"
    assert found.mask is None
    assert found.size("n") == 1


@pytest.mark.parametrize("matters", [False, True])
def test_zero_has_a_sign_only_where_it_matters(matters: bool) -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        return reference.dot_scores(query, key) + float(np.signbit(query).any() or not matters)

    subject = subject_of("dot_scores", scores)
    (example, *_) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)
    given = example.arguments(subject.operation, "float64")
    arguments = given.replaced({leaf.path: np.full_like(x, -0.0) for leaf, x in given.floats})
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    found, _ = reduced(subject, ORACLE, arguments, violation, 0, lambda law, what: None)
    assert not any(x.any() for _, x in found.floats)
    assert [bool(np.signbit(x).any()) for _, x in found.floats] == [matters, False]


def test_laws_with_inputs_of_their_own_get_the_simplest_model() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        if min(query.ndim, key.ndim) < 3 <= max(query.ndim, key.ndim):
            raise ValueError("expected equal ranks")
        return reference.dot_scores(query, key)

    subject, check = subject_of("dot_scores", scores), made("operation.broadcasting", "fewer_dimensions")
    (example, *_) = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)
    arguments = example.arguments(subject.operation, "float64")
    violation, *_ = attempt(subject, check, arguments, 0)
    assert violation is not None
    found, still = simplest(subject, check, arguments, violation, 0, lambda law, what: None)
    assert set(found.sizes.values()) == {1}
    assert still.message == violation.message


def test_heads_that_divide_the_width_are_reduced_together_with_it() -> None:
    def wrong(*args: Numbers, **options: Any) -> Any:
        heads, part, _ = args[3].shape
        return reference.multi_head_attention(*args, **options) + float(heads > 1 and part > 1)

    found = smallest(subject_of("multi_head_attention", wrong, divided_heads=True))
    sizes = {name: found.size(name) for name in ("heads", "p_q", "p_v", "d_q", "d_k", "d_v", "p_o")}
    assert sizes == {"heads": 2, "p_q": 2, "p_v": 2, "d_q": 4, "d_k": 4, "d_v": 4, "p_o": 4}


def test_heads_of_every_layer_are_reduced_together() -> None:
    def wrong(x: Numbers, layers: Any, **options: Any) -> Any:
        heads = max([0, *(layer.attention.w_q.shape[0] for layer in layers)])
        return reference.encoder_stack(x, layers, **options) + float(heads > 1)

    found = smallest(subject_of("encoder_stack", wrong, divided_heads=True))
    heads = {x.shape[0] for leaf, x in found.given if len(leaf.core) == 3 and not leaf.batched}
    assert heads == {2}
    assert found.size("d") == 2


def test_sizes_that_must_be_equal_are_reduced_together() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        return result + 1.0 if query.shape[-2] == key.shape[-2] > 2 else result

    found = smallest(subject_of("dot_scores", scores))
    assert (found.size("n"), found.size("m"), found.size("d")) == (3, 3, 1)


def test_three_equal_sizes_are_reduced_together_within_the_limits() -> None:
    def scores(query: Numbers, key: Numbers) -> Numbers:
        result = reference.dot_scores(query, key)
        return result + 1.0 if query.shape[-2] == key.shape[-2] == query.shape[-1] else result

    found = smallest(subject_of("dot_scores", scores, multiple_of=4, head_sizes=(6, 8, 16)))
    assert {found.size("n"), found.size("m"), found.size("d")} == {8}


FEATURED = [o.name for o in OPERATIONS.values() if o.features and not o.reference_only]


@pytest.mark.parametrize("name", FEATURED)
def test_no_reduction_uses_a_feature_that_the_backend_lacks(name: str) -> None:
    operation = OPERATIONS[name]
    paths = {feature.partition("=")[0] for feature in operation.features if "=" not in feature}

    def wrong(*given: Any, **named: Any) -> Any:
        raise ValueError("wrong")

    subject = subject_of(name, wrong, features=())
    check = made("operation.rejection", "rejection")
    example = corners(subject.operation, subject.limits, seed=0, most=1, work=2.0**12)[0]
    arguments = example.arguments(subject.operation, "float64")
    violation = Violation("raised", reason=Reason.RAISED, arguments=arguments)
    for law, reduction in ((ORACLE, reduced), (check, simplest)):
        found, _ = reduction(subject, law, arguments, violation, 0, lambda law, what: None)
        assert not [path for path in paths & found.keys() if found[path] != operation.defaults.get(path)]


def test_what_a_backend_declares_to_refuse_is_no_counterexample() -> None:
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
    given = Arguments(operation, {"n": 7, "d": 16})
    violation, *_ = attempt(subject, ORACLE, given, 0)
    assert violation is not None
    assert "wide" in violation.message
    found, still = reduced(subject, ORACLE, given, violation, 0, lambda law, what: None)
    assert (found.size("n"), found.size("d")) == (1, 4)
    assert "wide" in still.message


def test_a_law_with_inputs_of_its_own_gets_sizes_that_the_backend_does_not_refuse() -> None:
    def encoding(n: int, d: int) -> Numbers:
        if d % 2:
            raise ValueError("odd")
        return reference.sinusoidal_positional_encoding(n, d) + np.random.default_rng().random()

    backend = Backend("sinusoidal_positional_encoding", encoding, {})
    backend.semantics = {"odd_encoding": "error"}
    operation, check = OPERATIONS["sinusoidal_positional_encoding"], CHECKS["semantics.repeatability"][0]
    subject = Subject(backend, Contract.of(backend), operation, "float64", "cpu")
    given = Arguments(operation, {"n": 7, "d": 16})
    violation, *_ = attempt(subject, check, given, 0)
    assert violation is not None
    found, _ = simplest(subject, check, given, violation, 0, lambda law, what: None)
    assert found.size("d") == 2


def test_a_lost_sum_does_not_become_a_rounding() -> None:
    """As in the gradient of a bias in bfloat16: 256 for 4,096 says more than 1.001 for 1."""
    subject = subject_of("dot_scores", lambda q, k: np.clip(1.001 * reference.dot_scores(q, k), -16, 16))
    arguments = Arguments(subject.operation, {"query": np.ones((1, 256)), "key": np.ones((1, 256))})
    violation, *_ = attempt(subject, ORACLE, arguments, 0)
    assert violation is not None
    assert violation.difference == 0.9375
    _, shown = reduced(subject, ORACLE, arguments, violation, 0, lambda law, what: None)
    assert shown.difference >= 0.1
