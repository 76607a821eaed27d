"""Suite of additive, dot-product and grouped attention at all sizes, against all ways in PyTorch.

`floors` defines the promised ratio to the best rival at each size.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks import exact, multiply_adds
from benchmarks.case import FORWARD, OURS, WITH_BACKWARD, Case, Subject, compiled, make_call
from benchmarks.suites import never_slower_groups
from benchmarks.suites.never_slower_groups import COMPILED
from benchmarks.suites.settings import Inputs, Settings

SUITE = "never_slower"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
SMALL = (
    (1, 1, 1, 8), (1, 1, 64, 64), (8, 1, 30, 128), (2, 8, 8, 32), (4, 20, 20, 64), (4, 64, 64, 64), (32, 1, 256, 256),
    (4, 256, 256, 64),
)  # fmt: skip
"""Numbers of batch elements, queries, keys, and hidden units (equal to features); in every dtype."""
OTHERS = (
    (1, 1, 4096, 64), (64, 1, 30, 512), (16, 4, 128, 64), (64, 8, 8, 16), (1, 4096, 2, 32), (1, 512, 512, 64),
    (2, 32, 1024, 8), (64, 16, 16, 8), (1, 128, 128, 512), (1, 2048, 64, 32), (1, 1024, 1024, 64), (8, 30, 30, 256),
    (1, 4096, 4096, 16),
)  # fmt: skip
"""Further sizes as in ``SMALL``, only in float32."""
ODD = (
    (16, 50, 1, 200), (32, 200, 1, 128), (32, 50, 17, 300), (32, 100, 100, 50), (16, 1, 500, 200), (16, 200, 1, 200),
    (16, 13, 1, 300), (8, 1, 30, 300), (32, 1, 200, 200),
)  # fmt: skip
"""Sizes with dimensions that are neither powers of two nor multiples of a register's length; in every dtype."""
WIDE = ((1, 1, 30, 256, 512), (1, 3, 7, 128, 256), (32, 1, 20, 256, 1024), (32, 1, 20, 512, 64), (32, 17, 50, 64, 256))
"""Batch, queries, keys, hidden units, and another number of features; additive attention in float32 and bfloat16."""
MASKED = ((1, 1, 64, 64), (4, 20, 20, 64), (16, 4, 128, 64), (4, 64, 64, 64), (1, 512, 512, 64))
"""Sizes that are also measured with a mask of padding, in float32."""
VALUED = ((32, 1, 256, 256), (4, 64, 64, 64), (4, 256, 256, 64))
"""Sizes that are also measured with every kind of ``VALUES``, for additive attention in float32."""
VALUES: Mapping[str, str] = {
    "saturated": "weights of unit variance, whose sums are far beyond the range where tanh changes",
    "tiny": "all operands times 2^-65, so that their products are subnormal; without gradients, which are no more than "
    "roundings",
    "sparse": "nine of ten numbers are 0",
}
"""Kinds of unusual inputs, by the word that ends the name of a case."""
MAX_BYTES = 2 * 2**30
"""Largest size of the (B, n, m, h) intermediates with which the formula of additive attention is measured."""

Size = tuple[int, ...]
Formula = Callable[..., Tensor]


def additive(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *,
             mask: Tensor | None = None) -> Tensor:  # fmt: skip
    """softmax(w_vᵀ tanh(W_q q + W_k k)) v, computed as written."""
    scores = torch.tanh((query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)) @ w_v
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1) @ value


def dot(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """softmax(QKᵀ/√d) V, computed as written."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), -1) @ value


def as_given(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Call PyTorch's operator with three dimensions, as the inputs are."""
    return F.scaled_dot_product_attention(query, key, value, mask)


def in_four(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Call PyTorch's operator with four dimensions, for which it has fused kernels."""
    mask = None if mask is None else mask.unsqueeze(1)
    output = F.scaled_dot_product_attention(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), mask)
    return output.squeeze(1)


RIVALS: Mapping[str, Mapping[str, Formula]] = {
    "additive": {"eager": additive},
    "dot": {"eager": dot, "F.sdpa": as_given, "F.sdpa, 4 dimensions": in_four},
}
OF_BACKEND: Mapping[str, Formula] = {
    "additive": pytorch.additive_attention, "dot": pytorch.scaled_dot_product_attention
}  # fmt: skip


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of all sizes in float32, some in every dtype, some with a mask."""
    small: Sequence[Size] = SMALL + ODD
    others: Sequence[Size] = OTHERS
    masked: Sequence[Size] = MASKED
    wide: Sequence[Size] = WIDE
    valued: Sequence[Size] = VALUED
    if settings.sizes:
        small, others, masked, wide = tuple((2, n, n, 16) for n in settings.sizes), (), (), ()
        valued = ()
    elif settings.quick:
        small, others, masked, wide = SMALL[:5], (), MASKED[:2], WIDE[1:2]
        valued = ()
    for operation in RIVALS:
        for mode in (FORWARD, WITH_BACKWARD):
            for name in DTYPES:
                for size in small:
                    yield case(settings, operation, size, name, mode)
            for size in others:
                yield case(settings, operation, size, "f32", mode)
            for size in masked:
                yield case(settings, operation, size, "f32", mode, padding=True)
            for name, size in itertools.product(("f32", "bf16"), wide if operation == "additive" else ()):
                yield case(settings, operation, size, name, mode)
            for values, size in itertools.product(VALUES, valued if operation == "additive" else ()):
                if mode == FORWARD or values != "tiny":
                    yield case(settings, operation, size, "f32", mode, values=values)
    yield from never_slower_groups.cases(SUITE, settings)


def case(settings: Settings, operation: str, size: Size, dtype: str, mode: str, *,
         padding: bool = False, values: str = "") -> Case:  # fmt: skip
    """Case of one size in one dtype.

    The number of features ends the size if it is not that of hidden units. ``values`` is a kind of ``VALUES``. Without
    it, inputs are normal and weights have the scale of a fresh layer.
    """
    batch, n, m, h, *features = size
    d = features[0] if features else h
    draw = Inputs(settings.device)
    inputs = [draw.normal(batch, rows, d, dtype=DTYPES[dtype]) for rows in (n, m, m)]
    if operation == "additive":
        for shape in ((h, d), (h, d), (h,)):
            scale = 1.0 if values == "saturated" else shape[-1] ** -0.5
            inputs.append(draw.normal(*shape, scale=scale, dtype=DTYPES[dtype]))
    if values == "tiny":
        inputs = [x * 2.0**-65 for x in inputs]
    if values == "sparse":
        inputs = [x * (torch.rand(x.shape, generator=draw.generator) < 0.1).to(x) for x in inputs]
    mask = None
    if padding:
        lengths = torch.randint(1, m + 1, (batch, 1, 1), generator=draw.generator).to(draw.device)
        mask = (torch.arange(m, device=draw.device) < lengths).expand(batch, n, m).contiguous()
    rows = draw.rows(n)

    def masked(compute: Formula) -> Formula:
        return lambda *operands: compute(*operands, mask=mask)

    def formula(precision: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, query: Tensor, *others: Tensor, mask: Tensor | None = None) -> Tensor:
            return whole(query[:, row_indices], *others, mask=mask)

        return exact.expected(
            rows_of, inputs, rows, batched=3, dtype=precision, backward=mode == WITH_BACKWARD, mask=mask
        )

    whole = RIVALS[operation]["eager"]
    too_large = ""
    # four bytes for each sum and its tanh, with backward also for their gradients
    if operation == "additive" and batch * n * m * h * 4 * (2 if mode == FORWARD else 4) > MAX_BYTES:
        too_large = "its intermediates would take more than 2 GiB"
    subjects = [
        Subject(name, lambda compute=compute: make_call(mode, masked(compute), inputs), too_large)  # type: ignore[misc]
        for name, compute in RIVALS[operation].items()
    ]
    if n * m >= COMPILED and not settings.quick:
        subjects.append(
            Subject("torch.compile", lambda: make_call(mode, compiled(masked(whole)), inputs), too_large, compiles=True)
        )
    subjects.append(Subject(OURS, lambda: make_call(mode, masked(OF_BACKEND[operation]), inputs)))
    shared, ceiling, least = 0, "matmul", 4.0  # FLOP of a term: one multiply-add in each of two products
    if operation == "additive":
        shared, (ceiling, least) = 3, multiply_adds.limiting(settings.device, h, d)
    name = f"{operation} {dtype} {size}" + ", padding" * padding + f", {values}" * bool(values)
    return Case(
        SUITE, name, mode, sizes={"B": batch, "n": n, "m": m, "h": h} | ({"d": d} if features else {}), size=n,
        work=batch * n * m * h * (1.0 if mode == FORWARD else 2.0), unit="terms", ceiling=ceiling, subjects=subjects,
        formula=formula, comparable=lambda results: exact.comparable(results, rows, batched=3), shared=shared,
        per_unit=least, precision=DTYPES[dtype],
    )  # fmt: skip
