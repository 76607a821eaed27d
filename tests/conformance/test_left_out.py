"""What a declaration leaves out is never called, reports say so, and a run proposes it where it was refused."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.explaining.declaration import declaration
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.explaining.undeclared import Undeclared, undeclared
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, cases, judge
from attnspec.conformance.judging.profiles import FORMULA, PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.reference import REFERENCE
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.shapes import bind

Numbers = np.ndarray[Any, Any]
ATTENTION = "scaled_dot_product_attention"
QUICK = PROFILES["quick"]


class Kernel(NamedTuple):
    """What a kernel refuses of (query, key, value, mask, causal), by which message, and its declaration."""

    refuses: Callable[..., bool]
    says: str
    declared: dict[str, Any]
    laws: tuple[str, ...]


def _batches(*arrays: Numbers) -> list[int]:
    return [size for x in arrays for size in x.shape[:-2]]


def _idle(query: Numbers, key: Numbers, mask: Any, causal: bool) -> bool:
    """Whether a query has no key."""
    allowed = np.broadcast_to(True if mask is None else mask, np.broadcast_shapes(
        () if mask is None else mask.shape, (query.shape[-2], key.shape[-2])
    ))  # fmt: skip
    allowed = allowed & np.tri(query.shape[-2], key.shape[-2], dtype=bool) if causal else allowed
    return not allowed.any(-1).all()


KERNELS: Mapping[str, Kernel] = {
    "lengths of 0": Kernel(
        lambda query, key, value, mask, causal: 0 in (query.shape[-2], key.shape[-2]),
        "zero-size array to reduction operation maximum which has no identity",
        {"limits": {"min_length": 1}},
        ("semantics.no_keys",),
    ),
    "lengths below 8": Kernel(
        lambda query, key, value, mask, causal: min(query.shape[-2], key.shape[-2]) < 8,
        "sequences must have at least 8 elements",
        {"limits": {"min_length": 8}},
        ("semantics.no_keys",),
    ),
    "batches of 0": Kernel(
        lambda query, key, value, mask, causal: 0 in _batches(query, key, value),
        "the batch must be positive",
        {"limits": {"min_batch": 1}},
        ("operation.empty-batch",),
    ),
    "masks": Kernel(
        lambda query, key, value, mask, causal: mask is not None,
        "masks are not supported",
        {"limits": {"mask": False}},
        ("semantics.fully_masked",),
    ),
    "causal": Kernel(
        lambda query, key, value, mask, causal: causal,
        "attention() got an unexpected keyword argument 'causal'",
        {"limits": {"causal": False}},
        ("semantics.causal_alignment",),
    ),
    "views": Kernel(
        lambda query, key, value, mask, causal: (
            not all(x.flags.c_contiguous for x in (query, key, value, mask) if x is not None)
        ),
        "expected contiguous tensors",
        {"limits": {"contiguous_only": True}},
        ("storage.layouts",),
    ),
    "rows without keys": Kernel(
        lambda query, key, value, mask, causal: bool(key.shape[-2]) and _idle(query, key, mask, causal),
        "a row has nothing to attend to",
        {"semantics": {"fully_masked": "error"}},
        ("masking.rows-as-declared",),
    ),
}


def backend(kernel: Kernel, **declared: Any) -> Any:
    """The reference, which refuses what the kernel does."""

    def attention(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        if kernel.refuses(query, key, value, mask, causal):
            raise RuntimeError(kernel.says)
        return np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))

    limits = {"dtypes": ("float32",), **declared.pop("limits", {})}
    return SimpleNamespace(name="kernel", scaled_dot_product_attention=attention, limits=limits, **declared)


def judged(made: Any) -> dict[str, Result]:
    """The verdict of every law."""
    contract = Contract.of(made)
    (case,) = cases(contract)
    return {r.law: r for r in judge(made, contract, case, QUICK)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_backend_that_declares_what_it_refuses_conforms(kernel: Kernel) -> None:
    results = judged(backend(kernel, **kernel.declared))
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    ((attribute, ((name, value),)),) = ((a, tuple(x.items())) for a, x in kernel.declared.items())
    left_out = {law: r.reason for law, r in results.items() if (r.reason or "").startswith("left out by")}
    assert set(left_out.values()) <= {f"left out by {attribute} {name} = {value}"}
    for law in kernel.laws:
        assert results[law].status is Status.NOT_APPLICABLE, law


def observed(
    made: Any, dtype: str = "float32", laws: tuple[str, ...] = ()
) -> tuple[set[str], Undeclared, dict[str, Any]]:
    """The laws that fail, what explains them, and the attributes to paste."""
    contract = Contract.of(made)
    case = next(c for c in cases(contract, laws=laws) if (c.operation, c.dtype) == (ATTENTION, dtype))
    results = judge(made, contract, case, QUICK)
    failed = [r for r in results if r.status is Status.FAILED]
    subject = Subject(made, contract, OPERATIONS[case.operation], dtype, "cpu")
    under = partial(judge, made, profile=QUICK, stop_at_first=True)
    found = undeclared(under, contract, case, failed, lambda: refusals(subject, lambda law, example: None))
    pasted = declaration(contract, results, {case.id: found.as_json()})
    return {r.law for r in failed}, found, dict(pasted.attributes)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_without_a_declaration_it_is_convicted_and_the_declaration_proposed(kernel: Kernel) -> None:
    failed, found, pasted = observed(backend(kernel))
    assert failed
    assert failed == set(found.laws)
    expected = {name: dict(x) for name, x in kernel.declared.items()}
    if "limits" in expected:
        expected["limits"] = {"dtypes": ("float32",), **expected["limits"]}
    assert pasted == expected


def careless(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
    """Attention that cuts what does not fit."""
    m = min(key.shape[-2], value.shape[-2])
    if mask is not None and mask.shape[-1] not in (1, m):
        mask = mask[..., :m]
    return np.asarray(
        reference.scaled_dot_product_attention(query, key[..., :m, :], value[..., :m, :], mask=mask, causal=causal)
    )


def test_shapes_that_nobody_checks_are_a_deviation_if_it_is_declared() -> None:
    made = SimpleNamespace(name="careless", scaled_dot_product_attention=careless, limits={"dtypes": ("float32",)})
    failed, found, pasted = observed(made)
    assert failed == set(found.laws) == {"operation.rejection"}
    assert pasted == {"semantics": {"rejection": "unchecked"}}
    made.semantics = pasted["semantics"]
    results = judged(made)
    assert [r.law for r in results.values() if r.status is Status.FAILED] == []
    rejection = results["operation.rejection"]
    assert (rejection.status, rejection.reason) == (
        Status.NOT_APPLICABLE,
        "left out by semantics rejection = unchecked",
    )


def test_who_checks_shapes_may_declare_less() -> None:
    kernel = Kernel(lambda *given: False, "", {}, ())
    results = judged(backend(kernel, semantics={"rejection": "unchecked"}))
    assert [r.law for r in results.values() if r.status is Status.FAILED] == []


def without_gradients(operation: str, arguments: Mapping[str, Any], cotangent: Any) -> Mapping[str, Any]:
    """Gradients of nothing."""
    raise NotImplementedError(f"the backward pass of {operation} is not implemented")


def test_gradients_of_some_operations_only() -> None:
    others = {"softmax": reference.softmax, "dot_scores": reference.dot_scores}
    made = backend(Kernel(lambda *given: False, "", {}, ()), vjp=without_gradients, **others)
    failed, found, pasted = observed(made, laws=("operation.gradient", "operation.oracle"))
    assert failed == set(found.laws) == {"operation.gradient"}
    assert pasted == {"limits": {"dtypes": ("float32",), "gradients": ("dot_scores", "softmax")}}
    made.limits = pasted["limits"]
    contract = Contract.of(made)
    case = next(c for c in cases(contract, laws=("operation.gradient",)) if c.operation == ATTENTION)
    (result,) = judge(made, contract, case, QUICK)
    assert (result.status, result.reason) == (Status.NOT_APPLICABLE, "left out by limits gradients")


def test_gradients_are_those_of_operations() -> None:
    with pytest.raises(ValueError, match=r"^limits gradients: expected names of operations; got 'soft'$"):
        Contract.of(SimpleNamespace(name="mine", limits={"gradients": ("soft",)}))


def in_single(scale: float, *arrays: Numbers, **options: Any) -> Numbers:
    """Attention of doubles as of float32."""
    found = reference.scaled_dot_product_attention(*(x.astype(np.float32) for x in arrays), **options)
    return np.asarray(np.asarray(found).astype(np.float64) * scale)


@pytest.mark.parametrize(("scale", "expected"), [(1.0, {"float64": "ieee32-float64"}), (1 + 2.0**-19, None)])
def test_doubles_that_are_computed_with_as_float32_have_a_class(scale: float, expected: Any) -> None:
    made = SimpleNamespace(name="mine", scaled_dot_product_attention=partial(in_single, scale))
    _, _, pasted = observed(made, "float64", (FORMULA, "attention.scale", "pooling.gain"))
    assert pasted.get("precision") == expected


def by_way(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
    """Attention in which a padding mask, the same for all queries, makes rows without keys NaN."""
    found = np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))
    if mask is not None and mask.shape[-2] == 1 < query.shape[-2]:
        found = np.where(mask.any(-1)[..., None], found, np.float32(np.nan))
    return found


def test_rows_without_keys_may_depend_on_how_the_mask_is_encoded() -> None:
    made = SimpleNamespace(name="ways", scaled_dot_product_attention=by_way, limits={"dtypes": ("float32",)})
    failed, found, pasted = observed(made)
    assert failed == set(found.laws)
    assert "semantics.fully_masked" in failed
    ways = {"full": "zero", "queries-alike": "nan", "keys-alike": "zero", "no-batch": "zero"}
    assert pasted == {"semantics": {"fully_masked": ways}}
    made.semantics = pasted["semantics"]
    results = judged(made)
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    question = results["semantics.fully_masked"]
    assert question.observed == "full: zero, queries-alike: nan, keys-alike: zero, no-batch: zero"
    made.semantics = {"fully_masked": {"full": "zero", "no-batch": "uniform"}}
    wrong = judged(made)["semantics.fully_masked"]
    assert wrong.status is Status.FAILED
    assert wrong.message.startswith(
        "fully_masked: declared full: zero, queries-alike: zero, keys-alike: zero, no-batch: uniform, "
        "observed zero and nan"
    )
    assert wrong.message.endswith(
        'declare semantics = {"fully_masked": {"full": "zero", "queries-alike": "nan", "keys-alike": "zero", '
        '"no-batch": "zero"}}'
    )


@pytest.mark.parametrize("seed", range(4))
def test_encodings_of_one_mask_are_not_compared_in_rows_without_keys_that_depend_on_them(seed: int) -> None:
    made = SimpleNamespace(name="ways", scaled_dot_product_attention=by_way, limits={"dtypes": ("float32",)})
    made.semantics = {"fully_masked": {"full": "zero", "queries-alike": "nan"}}
    contract = Contract.of(made)
    case = next(c for c in cases(contract, laws=("operation.broadcasting",)) if c.operation == ATTENTION)
    (result,) = judge(made, contract, case, QUICK, seed=seed)
    assert (result.status, result.message) == (Status.PASSED, "")


def test_who_raises_on_rows_without_keys_is_asked_what_no_keys_give() -> None:
    def ones(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        found = np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))
        return found if key.shape[-2] else np.ones_like(found)

    made = SimpleNamespace(name="mine", scaled_dot_product_attention=ones, limits={"dtypes": ("float32",)})
    made.semantics = {"fully_masked": "error"}
    result = judged(made)["semantics.no_keys"]
    assert result.status is Status.FAILED
    assert result.message.startswith("no_keys: declared zero")


def test_who_raises_on_rows_without_keys_is_judged_in_batches_whose_rows_have_one() -> None:
    def last_from_the_first(
        query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False
    ) -> Numbers:
        if value.ndim == 3 and len(value) > 6:
            value = np.concatenate((value[:-1], value[:1]))
        return np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))

    made = SimpleNamespace(name="mine", scaled_dot_product_attention=last_from_the_first)
    made.limits, made.semantics = {"dtypes": ("float32",)}, {"fully_masked": "error"}
    contract = Contract.of(made)
    (case,) = (c for c in cases(contract, laws=("sizes.features",)) if c.operation == ATTENTION)
    for seed in range(4):
        (result,) = judge(made, contract, case, QUICK, seed=seed)
        assert result.status is Status.FAILED


@pytest.mark.parametrize("rejection", ["raises", "unchecked"])
def test_numbers_are_the_callers_to_check_where_shapes_are(rejection: str) -> None:
    """A kernel that looked at lengths would wait for its device."""

    def padding_mask(lengths: Numbers, m: int) -> Numbers:
        return np.asarray(np.arange(m) < lengths[..., None])

    backend = SimpleNamespace(name="mine", padding_mask=padding_mask, semantics={"rejection": rejection})
    case = Case("padding_mask", "bool", ("operation.rejection",))
    (found,) = judge(backend, Contract.of(backend), case, profile=QUICK)
    if rejection == "raises":
        assert found.status is Status.FAILED
    else:
        assert (found.status, found.reason) == (
            Status.NOT_APPLICABLE, "left out by semantics rejection = unchecked"
        )  # fmt: skip


def guarded(limits: Limits, name: str) -> Callable[..., Any]:
    """The reference's function, that refuses all sizes outside of the limits."""
    operation = OPERATIONS[name]

    def call(*arguments: Any, **options: Any) -> Any:
        bound = bind(operation, dict(zip(operation.call.names, arguments, strict=False)) | options)
        lengths = [size for size_name, size in bound.sizes.items() if operation.axis(size_name) & Axis.POSITION]
        assert all(size % limits.multiple_of == 0 for size in lengths)
        assert all(limits.min_length <= size <= (limits.max_length or size) for size in lengths)
        assert len(bound.batch) <= limits.max_batch_dims
        assert all(size >= limits.min_batch for size in bound.batch)
        return REFERENCE[name](*arguments, **options)

    return call


@pytest.mark.parametrize(
    ("name", "limits", "laws"),
    [
        ("dot_scores", {"multiple_of": 4}, ("moments.mean-and-variance",)),
        ("nadaraya_watson", {"multiple_of": 16}, ("sizes.features",)),
        ("sinusoidal_positional_encoding", {"multiple_of": 8}, ("positional.prefix",)),
        ("lstm", {"multiple_of": 4}, ("recurrent.first-step", "recurrent.continuation")),
        ("beam_decode", {"multiple_of": 4}, ("seq2seq.one-annotation", "seq2seq.exhaustive-beam")),
        ("paged_attention", {"multiple_of": 16}, ("kernels.contiguous",)),
        ("grouped_query_attention", {"max_length": 65}, ("kernels.bias",)),
        ("merge_attention", {"max_batch_dims": 1}, ("kernels.merged",)),
        ("spatial_attention", {"min_batch": 2}, ("operation.no-mutation",)),
    ],
)
def test_no_law_calls_outside_of_the_limits(name: str, limits: dict[str, Any], laws: tuple[str, ...]) -> None:
    declared = Limits.of(limits)
    backend = SimpleNamespace(name="guarded", limits=declared, **{name: guarded(declared, name)})
    contract = Contract.of(backend)
    for case in cases(contract, operations=(name,), laws=laws)[:1]:
        results = judge(backend, contract, case, QUICK)
        assert [(r.law, r.message) for r in results if r.status is Status.FAILED] == []
