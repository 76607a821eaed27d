"""Grouped attention in the suite `never_slower`: small sizes, against PyTorch's ways to share keys."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import ATTENTION_PASSES, FORWARD, OURS, WITH_BACKWARD, Case, Subject, make_call
from benchmarks.suites.groups import HEADS, HEADS_K, first_group, flexibly
from benchmarks.suites.settings import Inputs, Settings

SIZES = ((1, 1, 1, 8), (1, 1, 64, 64), (2, 8, 8, 32), (1, 16, 16, 64), (4, 32, 32, 64), (1, 1, 4096, 64),
         (2, 64, 64, 64), (1, 256, 256, 64), (1, 1024, 1024, 64))  # fmt: skip
"""Numbers of batch elements, queries, keys and features; 8 query heads share 2 key heads."""
DTYPES: Mapping[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16}
COMPILED = 4096
"""Smallest number of queries times keys at which compiled subjects are measured."""


def ours(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Grouped attention of the backend, without log-sum-exp."""
    return pytorch.grouped_query_attention(query, key, value, causal=causal)[0]


def dispatched(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """PyTorch's operator with its own choice of kernel."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)


def math(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """PyTorch's operator with its MATH kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return dispatched(query, key, value, causal=causal)


def eager(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    """Formula computed as written; key heads broadcast over the query heads of their groups."""
    b, heads, n, d = query.shape
    scores = query.reshape(b, key.shape[1], -1, n, d) @ key.unsqueeze(2).mT * d**-0.5
    if causal:
        earlier = torch.ones(n, key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~earlier, -torch.inf)
    return (torch.softmax(scores, -1) @ value.unsqueeze(2)).reshape(b, heads, n, value.shape[-1])


def cases(suite: str, settings: Settings) -> Iterator[Case]:
    """Cases with all keys and causal, forward and with backward."""
    sizes: Sequence[tuple[int, int, int, int]] = SIZES[:3] if settings.quick else SIZES
    if settings.sizes:
        sizes = tuple((2, n, n, 16) for n in settings.sizes)
    for mode in (FORWARD, WITH_BACKWARD):
        for dtype in DTYPES:
            for size in sizes:
                for causal in (False, True) if size[1] > 1 else (False,):
                    yield case(suite, settings, size, dtype, mode, causal=causal)


def case(suite: str, settings: Settings, size: tuple[int, int, int, int], dtype: str, mode: str, *,
         causal: bool) -> Case:  # fmt: skip
    """Case of one size in one dtype."""
    batch, n, m, d = size
    draw = Inputs(settings.device)
    shapes = (batch, HEADS, n, d), (batch, HEADS_K, m, d), (batch, HEADS_K, m, d)
    query, key, value = (draw.normal(*shape, dtype=DTYPES[dtype]) for shape in shapes)
    inputs, rows = (query, key, value), draw.rows(n)

    def formula(precision: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scores = (query[..., row_indices, :] @ key.mT) * d**-0.5
            if causal:
                keys = torch.arange(m, device=scores.device)
                scores = scores.masked_fill(keys > row_indices[:, None], -torch.inf)
            return torch.softmax(scores, -1) @ value

        return exact.expected(
            rows_of, first_group(inputs), rows, batched=3, dtype=precision, backward=mode == WITH_BACKWARD
        )

    rivals = {"eager": eager, "F.sdpa": dispatched, "math": math, OURS: ours}
    subjects = [
        Subject(name, partial(make_call, mode, partial(compute, causal=causal), inputs))
        for name, compute in rivals.items()
    ]
    if n * m >= COMPILED and not settings.quick:
        subjects.insert(3, flexibly(mode, inputs, causal, None))
    name = f"groups {dtype} {size}" + ", causal" * causal
    work = 4.0 * batch * HEADS * n * m * d * ATTENTION_PASSES[mode]
    return Case(
        suite, name, mode, sizes={"B": batch, "heads": HEADS, "heads_k": HEADS_K, "n": n, "m": m, "h": d}, size=n,
        work=work, unit="FLOP", ceiling="matmul", subjects=subjects, formula=formula,
        comparable=lambda results: exact.comparable(first_group(results), rows, batched=3), precision=DTYPES[dtype],
    )  # fmt: skip
