"""The decorator `defines`: checks, conversions and a name; other arrays pass untouched."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import ml_dtypes
import numpy as np
import pytest
from jaxtyping import Float

from attnspec.reference import REFERENCE, causal_mask, defines, dot_product_attention, dot_scores, padding_mask, softmax
from attnspec.reference.defining.definition import _REFERENCE
from attnspec.spec import OPERATIONS, Array, DotScores, ShapeError, operation
from attnspec.spec.contract.annotations import sizes
from attnspec.spec.contract.operation import _OPERATIONS
from attnspec.spec.contract.tree import Option, flatten, map_tree, without_indices

ALL_ONES: Any = np.ones((2, 3))
WITH_FLOATS = [o.name for o in OPERATIONS.values() if o.floats]


def assert_equal(left: Any, right: Any) -> None:
    left_arrays, right_arrays = flatten(left), flatten(right)
    assert left_arrays.keys() == right_arrays.keys()
    assert all(np.array_equal(x, right_arrays[path]) for path, x in left_arrays.items())


class Duck(np.lib.mixins.NDArrayOperatorsMixin):
    """The least that counts as an array of another kind. It knows ufuncs only, and it must not become an array."""

    def __init__(self, inner: np.ndarray) -> None:
        self.inner, self.shape, self.dtype = inner, inner.shape, inner.dtype

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise AssertionError("made an ordinary array of it")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> "Duck":
        plain = (x.inner if isinstance(x, Duck) else x for x in inputs)
        return Duck(getattr(ufunc, method)(*plain, **kwargs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is softmax:
            return "softmax"
        return Duck(function(*(x.inner if isinstance(x, Duck) else x for x in args), **kwargs))


class QuietDuck(Duck):
    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented


def test_every_operation_is_registered_and_exported() -> None:
    import attnspec.reference as module

    assert set(REFERENCE) == set(OPERATIONS)
    for name, function in REFERENCE.items():
        assert getattr(module, name) is function
        assert name in import_module(f"attnspec.reference.{OPERATIONS[name].chapter}").__all__
    assert module.name == "reference"


def test_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        REFERENCE["dot_scores"] = dot_scores  # type: ignore[index]  # this is what must not work


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a function with the name dot_scores"):

        @defines(DotScores[np.ndarray])
        def scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
            return query


def test_a_class_that_is_no_protocol_is_refused() -> None:
    with pytest.raises(
        ValueError, match="expected the Protocol of an operation with its array type; got <class 'int'>"
    ):
        defines(int)


def test_the_undecorated_formula_stays_reachable() -> None:
    formula = inspect.unwrap(dot_scores)
    assert formula is not dot_scores
    assert formula(ALL_ONES, ALL_ONES).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("name", OPERATIONS)
def test_keyword_and_positional_calls_agree(name: str, draw: Any) -> None:
    arguments = draw(name)
    keyword_only = OPERATIONS[name].keyword_only
    positional = [value for key, value in arguments.items() if key not in keyword_only]
    keywords = {key: value for key, value in arguments.items() if key in keyword_only}
    by_position, by_name = REFERENCE[name](*positional, **keywords), REFERENCE[name](**arguments)
    assert_equal(by_position, by_name)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((ALL_ONES,), {}, "missing 1 required positional argument: 'key'"),
        ((ALL_ONES, ALL_ONES, ALL_ONES), {}, "takes 2 positional arguments but 3 were given"),
        ((ALL_ONES, ALL_ONES), {"query": ALL_ONES}, "got multiple values for argument 'query'"),
        ((ALL_ONES, ALL_ONES), {"scale": 1}, "got an unexpected keyword argument 'scale'"),
    ],
)
def test_a_wrong_call_is_named(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"^dot_scores\(\) {message}"):
        dot_scores(*args, **kwargs)


def test_mask_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        REFERENCE["softmax"](ALL_ONES, ALL_ONES > 0)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "about"),
    [
        ("dot_scores", (ALL_ONES, "key"), {}, "key: expected real numbers; got <U3"),
        ("dot_scores", (ALL_ONES * 1j, ALL_ONES), {}, "query: expected real numbers; got complex128"),
        ("dot_scores", (ALL_ONES > 0, ALL_ONES), {}, "query: expected real numbers; got bool"),
        ("dot_scores", (None, ALL_ONES), {}, "query: expected real numbers; got NoneType"),
        ("dot_scores", ([None], ALL_ONES), {}, "query: expected real numbers; got object"),
        ("dot_scores", ([[1], [2, 3]], ALL_ONES), {}, "query: expected real numbers; got list of uneven lengths"),
        ("softmax", (ALL_ONES,), {"mask": ALL_ONES}, "mask: expected booleans, True = may attend; got float64"),
        ("self_attention", (ALL_ONES,), {"causal": ALL_ONES > 0}, "causal: expected True or False; got ndarray"),
        ("self_attention", (ALL_ONES,), {"causal": 1}, "causal: expected True or False; got 1"),
        ("self_attention", (ALL_ONES,), {"causal": None}, "causal: expected True or False; got None"),
        ("causal_mask", (2.0, 3), {}, "n: expected an integer; got 2.0"),
        ("causal_mask", (ALL_ONES, 3), {}, "n: expected an integer; got ndarray"),
        ("causal_mask", (True, 3), {}, "n: expected an integer; got True"),
        ("padding_mask", ([1.0], 3), {}, "lengths: expected integers; got float64"),
        ("padding_mask", (None, 3), {}, "lengths: expected integers; got NoneType"),
        ("dot_product_mean", (1.0,), {"d": 2.5}, "d: expected an integer; got 2.5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(name: str, args: Any, kwargs: Any, about: str) -> None:
    with pytest.raises(TypeError) as raised:
        REFERENCE[name](*args, **kwargs)
    assert str(raised.value) == f"{name}: {about}"


def replacing(path: str) -> Callable[[str, Any], Any]:
    """A change that puts None in the place of one array."""
    return lambda p, x: None if p == path else x


@pytest.mark.parametrize("name", OPERATIONS)
def test_none_in_place_of_an_array_is_named(name: str, draw: Any) -> None:
    arguments, operation = draw(name), OPERATIONS[name]
    optional = {leaf.path for leaf in operation.leaves if leaf.optional}
    for path in [
        p for p, x in flatten(arguments).items() if isinstance(x, np.ndarray) and without_indices(p) not in optional
    ]:
        missing = {argument: map_tree(x, replacing(path), argument) for argument, x in arguments.items()}
        with pytest.raises(TypeError, match=rf"^{name}: {re.escape(path)}: expected [\w ]+; got NoneType$"):
            REFERENCE[name](**missing)


OPTIONS_WITH_CHOICES = [(o.name, option) for o in OPERATIONS.values() for option in o.options if option.choices]


@pytest.mark.parametrize(
    ("name", "option"), OPTIONS_WITH_CHOICES, ids=[f"{name}-{option.path}" for name, option in OPTIONS_WITH_CHOICES]
)
@pytest.mark.parametrize(("wrong", "got"), [(1, "1"), (None, "None"), ("maybe", "'maybe'"), (ALL_ONES, "ndarray")])
def test_an_option_that_is_no_choice_is_named(name: str, option: Option, wrong: Any, got: str, draw: Any) -> None:
    with pytest.raises(TypeError) as raised:
        REFERENCE[name](**{**draw(name), option.path: wrong})
    assert str(raised.value) == f"{name}: {option.path}: expected {option.expected}; got {got}"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", WITH_FLOATS)
def test_dtype_is_kept(name: str, dtype: Any, draw: Any) -> None:
    result = flatten(REFERENCE[name](**draw(name, dtype)))
    kept = {np.dtype(dtype)} if OPERATIONS[name].float_result else set()
    assert {x.dtype for x in result.values() if x.dtype.kind not in "biu"} == kept


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", WITH_FLOATS)
def test_16_bits_are_computed_in_float32_and_rounded_once(name: str, dtype: Any, draw: Any) -> None:
    arguments = draw(name, dtype)
    narrow = np.dtype(dtype)
    wide = map_tree(arguments, lambda _, x: x.astype(np.float32) if getattr(x, "dtype", None) == narrow else x)
    rounded = map_tree(REFERENCE[name](**wide), lambda _, x: x.astype(narrow) if x.dtype.kind == "f" else x)
    assert_equal(REFERENCE[name](**arguments), rounded)


def test_mixed_dtypes_are_promoted() -> None:
    low: Any = ALL_ONES.astype(np.float32)
    assert dot_scores(low, ALL_ONES).dtype == np.float64
    assert dot_scores(low, ALL_ONES.astype(np.float16)).dtype == np.float32
    assert dot_scores(low, ALL_ONES.astype(ml_dtypes.bfloat16)).dtype == np.float32


@pytest.mark.parametrize("query", [[[1, 2, 3]], [[1.0, 2.0, 3.0]], np.array([[1, 2, 3]]), ((1, 2, 3),)])
def test_lists_and_integers_become_float64(query: Any) -> None:
    scores = dot_scores(query, ALL_ONES)
    assert scores.dtype == np.float64
    assert scores.tolist() == [[6, 6]]


def test_bytes_in_the_other_order() -> None:
    scores = dot_scores(ALL_ONES.astype(">f4"), ALL_ONES.astype("<f4"))
    assert scores.dtype == np.dtype(np.float32)
    assert scores.tolist() == [[3, 3], [3, 3]]


def test_operations_without_float_arguments_give_float64() -> None:
    assert REFERENCE["sinusoidal_positional_encoding"](2, 3).dtype == np.float64


def test_numpy_numbers_are_sizes_and_flags() -> None:
    mask = causal_mask(np.int64(2), np.uint8(2), include_self=np.False_)  # type: ignore[arg-type]  # at run time it may
    assert mask.tolist() == [[False, False], [True, False]]


def test_lengths_may_be_a_list() -> None:
    lengths: Any = [0, 2]
    assert padding_mask(lengths, 2).tolist() == [[False, False], [True, True]]


def test_results_are_arrays() -> None:
    for name in ("dot_product_mean", "dot_product_variance"):
        arguments = {"mean": [1.0, 2.0], **({"sigma": 1.0} if name.endswith("variance") else {})}
        result = REFERENCE[name](**arguments)
        assert type(result) is np.ndarray
        assert result.shape == ()


@pytest.mark.parametrize("name", OPERATIONS)
def test_arguments_are_not_written_to(name: str, draw: Any) -> None:
    arguments = draw(name)
    for value in flatten(arguments).values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    before = map_tree(arguments, lambda _, value: np.copy(value))
    REFERENCE[name](**arguments)
    assert_equal(arguments, before)


def test_other_arrays_reach_the_formula_untouched() -> None:
    key: Any = Duck(ALL_ONES)
    scores: Any = dot_scores(Duck(ALL_ONES), key)  # type: ignore[arg-type]  # a Duck is no ndarray: that is the point
    assert isinstance(scores, Duck)
    assert scores.inner.tolist() == [[3, 3], [3, 3]]


def test_shapes_of_other_arrays_are_checked() -> None:
    query, key = Duck(ALL_ONES), Duck(np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"^dot_scores: key: expected "):
        REFERENCE["dot_scores"](query, key)


def test_softmax_is_one_step_for_other_arrays() -> None:
    scores: Any = Duck(ALL_ONES)
    assert softmax(scores) == "softmax"
    assert softmax(scores=scores, mask=ALL_ONES > 0) == "softmax"


def test_softmax_refuses_an_array_type_that_does_not_override_it() -> None:
    scores: Any = QuietDuck(ALL_ONES)
    with pytest.raises(TypeError, match="softmax: no implementation for QuietDuck"):
        softmax(scores)


def test_overrides_of_subclasses_are_tried_first() -> None:
    from attnspec.reference.defining.overriding import overridable

    calls = []

    class Base(Duck):
        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            calls.append((type(self).__name__, [t.__name__ for t in types], function is softmax, args, kwargs))
            return NotImplemented

    class Derived(Base):
        pass

    def formula(*arguments: Any, other: Any) -> None:
        raise AssertionError("ran the formula")

    formula.__name__ = "softmax"
    base, derived = Base(ALL_ONES), Derived(ALL_ONES)
    with pytest.raises(TypeError, match="no implementation for Derived, Base"):
        overridable(formula)(base, ALL_ONES, base, other=derived)
    expected = (["Derived", "Base"], True, (base, ALL_ONES, base), {"other": derived})
    assert [name for name, *_ in calls] == ["Derived", "Base"]
    assert all(tuple(details) == expected for _, *details in calls)


def test_nothing_warns_where_results_are_not_finite() -> None:
    value: Any = [[np.inf, np.nan], [1e308, 1.0]]
    assert not np.isfinite(dot_product_attention(value, value, value)).any()


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate(Generic[Array]):
    w: Float[Array, "h d"]
    b: Float[Array, " h"] | None = None


class State(NamedTuple, Generic[Array]):
    h: Float[Array, "*#batch h"]
    c: Float[Array, "*#batch h"]


STATE = State(ALL_ONES, ALL_ONES)


class Gated(Protocol[Array]):
    """Layers of gates on a state."""

    def __call__(
        self,
        state: State[Array],
        gates: Annotated[tuple[Gate[Array], ...], sizes(d="h")],
        *,
        norm: Literal["pre", "post"] = "post",
        factor: float = 1.0,
    ) -> tuple[Float[Array, "*batch h"], Float[Array, "*batch h"]]:
        """The state after the last layer."""
        ...


@pytest.fixture
def gated() -> Iterator[Any]:
    """A reference over trees, which is in the contract as long as the test runs."""
    operation("gated", chapter="recurrent", formula="", sources=[], results="h c", trial_values={"factor": (2.0,)})(
        Gated
    )

    def formula(
        state: State[np.ndarray],
        gates: tuple[Gate[np.ndarray], ...],
        *,
        norm: Literal["pre", "post"] = "post",
        factor: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        assert all(isinstance(gate, Gate) for gate in gates)
        h = state.h
        for gate in gates:
            h = h @ gate.w.T if gate.b is None else h @ gate.w.T + gate.b
        return h * (factor if norm == "post" else 1), state.c[..., ::-1].sum(-1, keepdims=True) + 0 * h

    formula.__name__ = "gated"
    yield defines(Gated[np.ndarray])(formula)
    _OPERATIONS.pop("gated")
    _REFERENCE.pop("gated")


def test_arrays_of_trees_are_converted(gated: Any) -> None:
    h, c = gated(State([1, 2], [3.0, 4.0]), (Gate([[0, 1], [1, 0]], [1, 1]), Gate(np.eye(2, dtype=np.float32))))
    assert (h.tolist(), c.tolist()) == ([3, 2], [7, 7])
    assert h.dtype == c.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_the_dtype_of_trees_is_kept(gated: Any, dtype: Any) -> None:
    x, w = np.ones(2, dtype), np.eye(2, dtype=dtype)
    assert {r.dtype for r in gated(State(x, x), (Gate(w, x),))} == {np.dtype(dtype)}
    assert {r.dtype for r in gated(State(x, x), (Gate(w, x.astype(np.float64)),))} == {np.dtype(np.float64)}


def test_other_arrays_in_trees_reach_the_formula_untouched(gated: Any) -> None:
    h, _ = gated(State(ALL_ONES[:, :2], ALL_ONES[:, :2]), ())
    duck = Duck(ALL_ONES[:, :2])
    seen, _ = inspect.unwrap(gated)(State(duck, ALL_ONES[:, :2]), ())
    assert isinstance(seen, Duck)
    assert seen.inner.tolist() == h.tolist()


@pytest.mark.parametrize(
    ("state", "gates", "message"),
    [
        ((ALL_ONES, ALL_ONES), (), "state: expected a State; got tuple"),
        (State(ALL_ONES, "c"), (), "state.c: expected real numbers; got <U1"),
        (State(ALL_ONES, ALL_ONES > 0), (), "state.c: expected real numbers; got bool"),
        (State(ALL_ONES, None), (), "state.c: expected real numbers; got NoneType"),
        (STATE, Gate(ALL_ONES), "gates: expected a tuple; got Gate"),
        (STATE, (Gate(np.eye(3)), 3), "gates[1]: expected a Gate; got int"),
        (STATE, (Gate(None),), "gates[0].w: expected real numbers; got NoneType"),
        (STATE, (Gate([[1], [1, 2]]),), "gates[0].w: expected real numbers; got list of uneven lengths"),
        (STATE, (Gate(np.eye(2)),), "gates[0].w: expected (h, d) with h = 3 (from state.h); got (2, 2)"),
    ],
)
def test_an_error_in_a_tree_is_named_by_its_path(gated: Any, state: Any, gates: Any, message: str) -> None:
    with pytest.raises((TypeError, ShapeError)) as raised:
        gated(state, gates)
    assert str(raised.value) == f"gated: {message}"
    assert isinstance(raised.value, ShapeError) == (" with " in message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "none"}, "norm: expected 'pre' or 'post'; got 'none'"),
        ({"norm": True}, "norm: expected 'pre' or 'post'; got True"),
        ({"factor": "2"}, "factor: expected a number; got '2'"),
        ({"factor": True}, "factor: expected a number; got True"),
    ],
)
def test_an_invalid_option_is_refused(gated: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as raised:
        gated(STATE, (), **options)
    assert str(raised.value) == f"gated: {message}"


def test_options_reach_the_formula(gated: Any) -> None:
    assert gated(STATE, (), factor=3)[0].tolist() == (3 * ALL_ONES).tolist()
    assert gated(STATE, (), factor=3, norm="pre")[0].tolist() == ALL_ONES.tolist()
