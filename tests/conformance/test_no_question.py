"""Points on which kernels differ and that need no question: see ``docs/conventions.md``."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from attnspec.conformance import judge
from attnspec.conformance.explaining.missing_declarations import missing_declarations
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge as judge_case
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Status
from attnspec.conformance.mutants import MUTANTS

from .test_declaring import subjects

SDPA = "scaled_dot_product_attention"


def attention(dtype: str, *, scaled_query: bool) -> tuple[Numbers, list[Numbers]]:
    """Attention whose scale multiplies the query in its dtype, or float32 scores."""
    rng = np.random.default_rng(0)
    arguments: list[Numbers] = [(2 * rng.standard_normal((4, 128, 80))).astype(numpy_dtype(dtype)) for _ in range(3)]
    query, key, value = (x.astype(np.float32) for x in arguments)
    scale = np.float32(1 / np.sqrt(80))
    if scaled_query:
        query = (query * scale).astype(numpy_dtype(dtype)).astype(np.float32)
    scores = query @ key.swapaxes(-1, -2) * np.float32(1 if scaled_query else scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    output = (weights / weights.sum(-1, keepdims=True)) @ value
    return output.astype(numpy_dtype(dtype)), arguments


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_scale_on_float32_scores_is_right_by_default(dtype: str) -> None:
    output, arguments = attention(dtype, scaled_query=False)
    assert judge(SDPA, output, *arguments)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_scale_on_the_query_in_its_dtype_has_a_class(dtype: str) -> None:
    output, arguments = attention(dtype, scaled_query=True)
    assert f"explained by precision prescaled-{dtype}" in str(judge(SDPA, output, *arguments))
    assert judge(SDPA, output, *arguments, precision=f"prescaled-{dtype}")
    too_large = (output * ml_dtypes.bfloat16(1.05)).astype(output.dtype)
    assert not judge(SDPA, too_large, *arguments, precision=f"prescaled-{dtype}")


def test_unchecked_lengths_are_unchecked_calls() -> None:
    """The backend checks shapes, but takes lengths out of range."""
    backend = MUTANTS["lengths not checked"].backend()
    contract, case = Contract.of(backend), Case("padding_mask", "float32", ("operation.rejection",))
    judge_under = partial(judge_case, backend, profile=PROFILES["quick"])
    (failed,) = judge_under(contract, case)
    assert failed.status is Status.FAILED
    assert "a length outside 0.." in failed.message
    under = subjects(backend, case)
    missing = missing_declarations(
        partial(judge_under, stop_at_first=True), contract, case, [failed],
        lambda: refusals(under(contract), lambda law, example: None), under,
    )  # fmt: skip
    assert missing.semantics == {"rejection": "unchecked"}
    assert set(missing.laws) == {"operation.rejection"}
