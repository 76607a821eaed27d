"""Declared refusals are not tested; undeclared ones are convicted and proposed as declarations."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.explaining.declaration import declaration
from attnspec.conformance.explaining.missing_declarations import MissingDeclarations, missing_declarations
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.judging.cases import Case, cases
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
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
    """Calls that a kernel refuses, its message, its declaration, and the laws it leaves out."""

    refuses: Callable[..., bool]
    says: str
    declared: dict[str, Any]
    laws: tuple[str, ...]


def _batches(*arrays: Numbers) -> list[int]:
    return [size for x in arrays for size in x.shape[:-2]]


def _has_empty_row(query: Numbers, key: Numbers, mask: Any, causal: bool) -> bool:
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
        ("storage.views-equal-copies",),
    ),
    "rows without keys": Kernel(
        lambda query, key, value, mask, causal: bool(key.shape[-2]) and _has_empty_row(query, key, mask, causal),
        "a row has nothing to attend to",
        {"semantics": {"fully_masked": "error"}},
        ("masking.rows-without-keys-as-declared",),
    ),
}


def refusing_backend(kernel: Kernel, **declared: Any) -> Any:
    """The reference, which refuses the same calls as the kernel."""

    def attention(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        if kernel.refuses(query, key, value, mask, causal):
            raise RuntimeError(kernel.says)
        return np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))

    limits = {"dtypes": ("float32",), **declared.pop("limits", {})}
    return SimpleNamespace(name="kernel", scaled_dot_product_attention=attention, limits=limits, **declared)


def results_by_law(backend: Any) -> dict[str, Result]:
    contract = Contract.of(backend)
    (case,) = cases(contract)
    return {r.law: r for r in judge(backend, contract, case, QUICK)}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_backend_that_declares_its_refusals_conforms(kernel: Kernel) -> None:
    results = results_by_law(refusing_backend(kernel, **kernel.declared))
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    ((attribute, ((name, value),)),) = ((a, tuple(x.items())) for a, x in kernel.declared.items())
    left_out = {law: r.reason for law, r in results.items() if (r.reason or "").startswith("left out by")}
    assert set(left_out.values()) <= {f"left out by {attribute} {name} = {value}"}
    for law in kernel.laws:
        assert results[law].status is Status.NOT_APPLICABLE, law


def observed_declaration(
    backend: Any, dtype: str = "float32", laws: tuple[str, ...] = ()
) -> tuple[set[str], MissingDeclarations, dict[str, Any]]:
    """The laws that fail, what explains them, and the attributes to paste."""
    contract = Contract.of(backend)
    case = next(c for c in cases(contract, laws=laws) if (c.operation, c.dtype) == (ATTENTION, dtype))
    results = judge(backend, contract, case, QUICK)
    failed = [r for r in results if r.status is Status.FAILED]

    def subject_under(contract: Contract) -> Subject:
        return Subject(backend, contract, OPERATIONS[case.operation], dtype, "cpu")

    judge_under = partial(judge, backend, profile=QUICK, stop_at_first=True)

    def refused() -> Any:
        return refusals(subject_under(contract), lambda law, example: None)

    explanation = missing_declarations(judge_under, contract, case, failed, refused, subject_under)
    pasted = declaration(contract, results, {case.id: explanation.as_json()})
    return {r.law for r in failed}, explanation, dict(pasted.attributes)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_an_undeclared_refusal_is_convicted_and_its_declaration_proposed(kernel: Kernel) -> None:
    failed, explanation, pasted = observed_declaration(refusing_backend(kernel))
    assert failed
    assert failed == set(explanation.laws)
    expected = {name: dict(x) for name, x in kernel.declared.items()}
    if "limits" in expected:
        expected["limits"] = {"dtypes": ("float32",), **expected["limits"]}
    assert pasted == expected


def cut_to_fit(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
    """Attention that cuts arrays to the shortest length instead of refusing them."""
    m = min(key.shape[-2], value.shape[-2])
    if mask is not None and mask.shape[-1] not in (1, m):
        mask = mask[..., :m]
    return np.asarray(
        reference.scaled_dot_product_attention(query, key[..., :m, :], value[..., :m, :], mask=mask, causal=causal)
    )


def test_unchecked_shapes_are_a_deviation_that_can_be_declared() -> None:
    backend = SimpleNamespace(name="careless", scaled_dot_product_attention=cut_to_fit, limits={"dtypes": ("float32",)})
    failed, explanation, pasted = observed_declaration(backend)
    assert failed == set(explanation.laws) == {"operation.rejection"}
    assert pasted == {"semantics": {"rejection": "unchecked"}}
    backend.semantics = pasted["semantics"]
    results = results_by_law(backend)
    assert [r.law for r in results.values() if r.status is Status.FAILED] == []
    rejection = results["operation.rejection"]
    assert (rejection.status, rejection.reason) == (
        Status.NOT_APPLICABLE,
        "left out by semantics rejection = unchecked",
    )


def test_a_backend_that_checks_shapes_may_declare_them_unchecked() -> None:
    kernel = Kernel(lambda *call: False, "", {}, ())
    results = results_by_law(refusing_backend(kernel, semantics={"rejection": "unchecked"}))
    assert [r.law for r in results.values() if r.status is Status.FAILED] == []


def without_gradients(operation: str, arguments: Mapping[str, Any], cotangent: Any) -> Mapping[str, Any]:
    raise NotImplementedError(f"the backward pass of {operation} is not implemented")


def test_missing_gradients_of_an_operation_are_proposed_as_limits() -> None:
    other_operations = {"softmax": reference.softmax, "dot_scores": reference.dot_scores}
    backend = refusing_backend(Kernel(lambda *call: False, "", {}, ()), vjp=without_gradients, **other_operations)
    failed, explanation, pasted = observed_declaration(backend, laws=("operation.gradient", "operation.oracle"))
    assert failed == set(explanation.laws) == {"operation.gradient"}
    assert pasted == {"limits": {"dtypes": ("float32",), "gradients": ("dot_scores", "softmax")}}
    backend.limits = pasted["limits"]
    contract = Contract.of(backend)
    case = next(c for c in cases(contract, laws=("operation.gradient",)) if c.operation == ATTENTION)
    (result,) = judge(backend, contract, case, QUICK)
    assert (result.status, result.reason) == (Status.NOT_APPLICABLE, "left out by limits gradients")


def test_limits_on_gradients_name_operations() -> None:
    with pytest.raises(
        ValueError, match=r"^limits gradients: expected names of operations, such as softmax, .*; got 'soft'$"
    ):
        Contract.of(SimpleNamespace(name="mine", limits={"gradients": ("soft",)}))


def attention_in_float32(scale: float, *arrays: Numbers, **options: Any) -> Numbers:
    """Attention of float64 that is computed in float32, times ``scale``."""
    output = reference.scaled_dot_product_attention(*(x.astype(np.float32) for x in arrays), **options)
    return np.asarray(np.asarray(output).astype(np.float64) * scale)


@pytest.mark.parametrize(("scale", "expected"), [(1.0, {"float64": "ieee32-float64"}), (1 + 2.0**-19, None)])
def test_float64_computed_in_float32_has_a_precision_class(scale: float, expected: Any) -> None:
    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=partial(attention_in_float32, scale))
    _, _, pasted = observed_declaration(
        backend, "float64", (FORMULA, "attention.unbiased-scale", "pooling.unbiased-gain")
    )
    assert pasted.get("precision") == expected


def padding_is_nan(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
    """Attention whose rows without keys are NaN under padding masks, and else 0."""
    output = np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))
    if mask is not None and mask.shape[-2] == 1 < query.shape[-2]:
        output = np.where(mask.any(-1)[..., None], output, np.float32(np.nan))
    return output


def test_rows_without_keys_may_depend_on_how_the_mask_is_encoded() -> None:
    backend = SimpleNamespace(name="ways", scaled_dot_product_attention=padding_is_nan, limits={"dtypes": ("float32",)})
    failed, explanation, pasted = observed_declaration(backend)
    assert failed == set(explanation.laws)
    assert "semantics.fully_masked" in failed
    # by encoding: a mask with one row, with one column, without a batch, or with all axes ("full")
    ways = {"full": "zero", "queries-alike": "nan", "keys-alike": "zero", "no-batch": "zero"}
    assert pasted == {"semantics": {"fully_masked": ways}}
    backend.semantics = pasted["semantics"]
    results = results_by_law(backend)
    assert {law: r.message for law, r in results.items() if r.status is Status.FAILED} == {}
    question = results["semantics.fully_masked"]
    assert question.observed == "full: zero, queries-alike: nan, keys-alike: zero, no-batch: zero"
    backend.semantics = {"fully_masked": {"full": "zero", "no-batch": "uniform"}}
    wrong = results_by_law(backend)["semantics.fully_masked"]
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
def test_encodings_of_a_mask_may_differ_in_rows_without_keys_if_declared(seed: int) -> None:
    backend = SimpleNamespace(name="ways", scaled_dot_product_attention=padding_is_nan, limits={"dtypes": ("float32",)})
    backend.semantics = {"fully_masked": {"full": "zero", "queries-alike": "nan"}}
    contract = Contract.of(backend)
    case = next(c for c in cases(contract, laws=("operation.broadcast-equals-repeat",)) if c.operation == ATTENTION)
    (result,) = judge(backend, contract, case, QUICK, seed=seed)
    assert (result.status, result.message) == (Status.PASSED, "")


def test_raising_on_rows_without_keys_does_not_excuse_results_of_no_keys() -> None:
    def ones(query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False) -> Numbers:
        output = np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))
        return output if key.shape[-2] else np.ones_like(output)

    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=ones, limits={"dtypes": ("float32",)})
    backend.semantics = {"fully_masked": "error"}
    result = results_by_law(backend)["semantics.no_keys"]
    assert result.status is Status.FAILED
    assert result.message.startswith("no_keys: declared zero")


def test_raising_on_rows_without_keys_does_not_excuse_late_batch_elements() -> None:
    def last_from_the_first(
        query: Numbers, key: Numbers, value: Numbers, *, mask: Any = None, causal: bool = False
    ) -> Numbers:
        if value.ndim == 3 and len(value) > 6:
            value = np.concatenate((value[:-1], value[:1]))
        return np.asarray(reference.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal))

    backend = SimpleNamespace(name="mine", scaled_dot_product_attention=last_from_the_first)
    backend.limits, backend.semantics = {"dtypes": ("float32",)}, {"fully_masked": "error"}
    contract = Contract.of(backend)
    (case,) = (c for c in cases(contract, laws=("sizes.model-sizes",)) if c.operation == ATTENTION)
    for seed in range(4):
        (result,) = judge(backend, contract, case, QUICK, seed=seed)
        assert result.status is Status.FAILED


@pytest.mark.parametrize("rejection", ["raises", "unchecked"])
def test_unchecked_shapes_leave_checking_numbers_to_the_caller_too(rejection: str) -> None:
    """A kernel that checked lengths would have to wait for its device."""

    def padding_mask(lengths: Numbers, m: int) -> Numbers:
        return np.asarray(np.arange(m) < lengths[..., None])

    backend = SimpleNamespace(name="mine", padding_mask=padding_mask, semantics={"rejection": rejection})
    case = Case("padding_mask", "bool", ("operation.rejection",))
    (result,) = judge(backend, Contract.of(backend), case, profile=QUICK)
    if rejection == "raises":
        assert result.status is Status.FAILED
    else:
        assert (result.status, result.reason) == (
            Status.NOT_APPLICABLE, "left out by semantics rejection = unchecked"
        )  # fmt: skip


def within_limits(limits: Limits, name: str) -> Callable[..., Any]:
    """The reference's function, which refuses all sizes outside of the limits."""
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


@pytest.mark.parametrize(("name", "limits", "laws"), [
    ("dot_scores", {"multiple_of": 4}, ("moments.mean-and-variance",)),
    ("nadaraya_watson", {"multiple_of": 16}, ("sizes.model-sizes",)),
    ("sinusoidal_positional_encoding", {"multiple_of": 8}, ("positional.prefix-unchanged",)),
    ("lstm", {"multiple_of": 4}, ("recurrent.first-step-is-cell", "recurrent.resumes-from-state")),
    ("beam_decode", {"multiple_of": 4}, ("seq2seq.one-annotation-is-context", "seq2seq.exhaustive-beam-is-optimal")),
    ("paged_attention", {"multiple_of": 16}, ("kernels.paged-equals-contiguous",)),
    ("grouped_query_attention", {"max_length": 65}, ("kernels.slopes-and-sinks-are-biases",)),
    ("merge_attention", {"max_batch_dims": 1}, ("kernels.merged-parts-equal-whole",)),
    ("spatial_attention", {"min_batch": 2}, ("operation.no-mutation",)),
])  # fmt: skip
def test_no_law_calls_outside_of_the_limits(name: str, limits: dict[str, Any], laws: tuple[str, ...]) -> None:
    declared = Limits.of(limits)
    backend = SimpleNamespace(name="guarded", limits=declared, **{name: within_limits(declared, name)})
    contract = Contract.of(backend)
    for case in cases(contract, operations=(name,), laws=laws)[:1]:
        results = judge(backend, contract, case, QUICK)
        assert [(r.law, r.message) for r in results if r.status is Status.FAILED] == []
