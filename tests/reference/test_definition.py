"""What `defines` adds to a formula: checks, conversions, a name; and what it leaves alone."""

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.reference import REFERENCE, causal_mask, defines, dot_product_attention, dot_scores, padding_mask, softmax
from attnspec.spec import OPERATIONS, DotScores

ONES: Any = np.ones((2, 3))


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
        assert name in module.__all__
    assert module.name == "reference"


def test_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        REFERENCE["dot_scores"] = dot_scores  # type: ignore[index]  # this is what must not work


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="the reference of dot_scores must have its name"):

        @defines(DotScores[np.ndarray])
        def scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
            return query


def test_what_is_no_protocol_is_refused() -> None:
    with pytest.raises(
        ValueError, match="expected the Protocol of an operation with its array type; got <class 'int'>"
    ):
        defines(int)


def test_formula_stays_reachable() -> None:
    formula = inspect.unwrap(dot_scores)
    assert formula is not dot_scores
    assert formula(ONES, ONES).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("name", OPERATIONS)
def test_keyword_and_positional_calls_agree(name: str, draw: Any) -> None:
    arguments = draw(name)
    keyword_only = {a.name for a in OPERATIONS[name].arguments if a.keyword_only}
    positional = [value for key, value in arguments.items() if key not in keyword_only]
    keywords = {key: value for key, value in arguments.items() if key in keyword_only}
    assert np.array_equal(REFERENCE[name](*positional, **keywords), REFERENCE[name](**arguments))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((ONES,), {}, "missing a required argument: 'key'"),
        ((ONES, ONES, ONES), {}, "too many positional arguments"),
        ((ONES, ONES), {"query": ONES}, "multiple values for argument 'query'"),
        ((ONES, ONES), {"scale": 1}, "got an unexpected keyword argument 'scale'"),
    ],
)
def test_wrong_calls(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        dot_scores(*args, **kwargs)


def test_mask_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        REFERENCE["softmax"](ONES, ONES > 0)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "about"),
    [
        ("dot_scores", (ONES, "key"), {}, "key: expected real numbers; got <U3"),
        ("dot_scores", (ONES * 1j, ONES), {}, "query: expected real numbers; got complex128"),
        ("dot_scores", (ONES > 0, ONES), {}, "query: expected real numbers; got bool"),
        ("dot_scores", (None, ONES), {}, "query: expected real numbers; got object"),
        ("dot_scores", ([[1], [2, 3]], ONES), {}, "query: expected real numbers; got list of uneven lengths"),
        ("softmax", (ONES,), {"mask": ONES}, "mask: expected booleans, True = may attend; got float64"),
        ("self_attention", (ONES,), {"causal": ONES > 0}, "causal: expected True or False; got ndarray"),
        ("self_attention", (ONES,), {"causal": 1}, "causal: expected True or False; got int"),
        ("causal_mask", (2.0, 3), {}, "n: expected an integer; got 2.0"),
        ("causal_mask", (True, 3), {}, "n: expected an integer; got True"),
        ("padding_mask", ([1.0], 3), {}, "lengths: expected integers; got float64"),
        ("dot_product_mean", (1.0,), {"d": 2.5}, "d: expected an integer; got 2.5"),
    ],
)
def test_wrong_kinds(name: str, args: Any, kwargs: Any, about: str) -> None:
    with pytest.raises(TypeError) as raised:
        REFERENCE[name](*args, **kwargs)
    assert str(raised.value) == f"{name}: {about}"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.float_arguments])
def test_dtype_is_kept(name: str, dtype: Any, draw: Any) -> None:
    assert REFERENCE[name](**draw(name, dtype)).dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.float_arguments])
def test_bfloat16_is_computed_in_float32_and_rounded_once(name: str, draw: Any) -> None:
    arguments = draw(name, ml_dtypes.bfloat16)
    wide = dict(arguments)
    for argument in OPERATIONS[name].float_arguments:
        wide[argument] = arguments[argument].astype(np.float32)
    assert np.array_equal(REFERENCE[name](**arguments), REFERENCE[name](**wide).astype(ml_dtypes.bfloat16))


def test_mixed_dtypes_are_promoted() -> None:
    low: Any = ONES.astype(np.float32)
    assert dot_scores(low, ONES).dtype == np.float64
    assert dot_scores(low, ONES.astype(np.float16)).dtype == np.float32
    assert dot_scores(low, ONES.astype(ml_dtypes.bfloat16)).dtype == np.float32


@pytest.mark.parametrize("query", [[[1, 2, 3]], [[1.0, 2.0, 3.0]], np.array([[1, 2, 3]]), ((1, 2, 3),)])
def test_lists_and_integers_become_float64(query: Any) -> None:
    scores = dot_scores(query, ONES)
    assert scores.dtype == np.float64
    assert scores.tolist() == [[6, 6]]


def test_bytes_in_the_other_order() -> None:
    scores = dot_scores(ONES.astype(">f4"), ONES.astype("<f4"))
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
    for value in arguments.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    before = {key: np.copy(value) for key, value in arguments.items()}
    REFERENCE[name](**arguments)
    assert all(np.array_equal(before[key], value) for key, value in arguments.items())


def test_other_arrays_reach_the_formula_untouched() -> None:
    key: Any = Duck(ONES)
    scores: Any = dot_scores(Duck(ONES), key)  # type: ignore[arg-type]  # a Duck is no ndarray: that is the point
    assert isinstance(scores, Duck)
    assert scores.inner.tolist() == [[3, 3], [3, 3]]


def test_shapes_of_other_arrays_are_checked() -> None:
    query, key = Duck(ONES), Duck(np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"^dot_scores: key: expected "):
        REFERENCE["dot_scores"](query, key)


def test_softmax_is_one_step_for_other_arrays() -> None:
    scores: Any = Duck(ONES)
    assert softmax(scores) == "softmax"
    assert softmax(scores=scores, mask=ONES > 0) == "softmax"


def test_softmax_without_a_rule() -> None:
    scores: Any = QuietDuck(ONES)
    with pytest.raises(TypeError, match="softmax: no implementation for QuietDuck"):
        softmax(scores)


def test_overriding_is_asked_of_subclasses_first() -> None:
    from attnspec.reference.defining.overriding import overridable

    asked = []

    class Base(Duck):
        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            asked.append((type(self).__name__, [t.__name__ for t in types], function is softmax, args, kwargs))
            return NotImplemented

    class Derived(Base):
        pass

    def formula(*arguments: Any, other: Any) -> None:
        raise AssertionError("ran the formula")

    formula.__name__ = "softmax"
    base, derived = Base(ONES), Derived(ONES)
    with pytest.raises(TypeError, match="no implementation for Derived, Base"):
        overridable(formula)(base, ONES, base, other=derived)
    expected = (["Derived", "Base"], True, (base, ONES, base), {"other": derived})
    assert [name for name, *_ in asked] == ["Derived", "Base"]
    assert all(tuple(rest) == expected for _, *rest in asked)


def test_nothing_warns_where_results_are_not_finite() -> None:
    value: Any = [[np.inf, np.nan], [1e308, 1.0]]
    assert not np.isfinite(dot_product_attention(value, value, value)).any()
