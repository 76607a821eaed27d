"""Suite of grouped-query attention: all keys, causal, a window, and decoding steps against cached keys."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import ATTENTION_PASSES, FORWARD, OURS, WITH_BACKWARD, Call, Case, Subject, compiled, make_call
from benchmarks.suites import flexible
from benchmarks.suites.settings import Inputs, Settings

SUITE = "groups"
HEADS, HEADS_K, FEATURES = 8, 2, 64
WINDOW = 256
"""Number of keys that a query in the window attends to: its own and those before it."""

STEP_HEADS_K, STEP_FEATURES = 8, 128
STEP_BYTES = 160 * 2**20
"""Bytes of keys and values of a step with 4,096 keys, more than four times a last-level cache of 32 MiB."""

F_SDPA = "F.sdpa"


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with n = m, and steps with 1 or 4 queries per key head."""
    for n in settings.chosen((64, 128, 256, 512, 1024, 2048, 4096), (64,)):
        for name in ("all keys", "causal", "window"):
            if name != "window" or n > 2 * WINDOW:
                for mode in (FORWARD, WITH_BACKWARD):
                    yield case(settings, n, name, mode)
    for m in settings.chosen((4096,), (64,)):
        for dtype in (torch.float32, torch.bfloat16):
            for group in (1, 4):
                yield step(settings, m, group, dtype)


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """Case of one size, for whole sequences."""
    draw = Inputs(settings.device)
    inputs = drawn(draw, n)
    causal, window, rows = name == "causal", (WINDOW - 1, 0) if name == "window" else None, draw.rows(n)
    i = torch.arange(n, device=settings.device)
    behind = i[:, None] - i
    mask = (behind >= 0) & (behind < WINDOW) if window else None

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, _ = pytorch.grouped_query_attention(query, key, value, causal=causal, window=window)
        return output

    def dispatched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, enable_gqa=True)

    def math(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return dispatched(query, key, value)

    def rows_of(row_indices: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = (query[..., row_indices, :] @ key.mT) * FEATURES**-0.5
        if causal or mask is not None:
            scores = scores.masked_fill(~(behind >= 0 if mask is None else mask)[row_indices], float("-inf"))
        return torch.softmax(scores, -1) @ value

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        first = first_group(inputs)
        return exact.expected(rows_of, first, rows, batched=3, dtype=dtype, backward=mode == WITH_BACKWARD, chunk=512)

    return Case(
        SUITE, name, mode, sizes={"B": 1, "heads": HEADS, "heads_k": HEADS_K, "n": n, "m": n, "d": FEATURES}, size=n,
        work=4.0 * HEADS * n * n * FEATURES * ATTENTION_PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=[
            Subject(F_SDPA, lambda: make_call(mode, dispatched, inputs)),
            Subject("math", lambda: make_call(mode, math, inputs)),
            flexibly(mode, inputs, causal, window),
            Subject(OURS, lambda: make_call(mode, ours, inputs)),
        ],
        formula=formula, comparable=lambda results: exact.comparable(first_group(results), rows, batched=3),
        baseline=F_SDPA,
    )  # fmt: skip


def drawn(draw: Inputs, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of whole sequences."""
    query, key, value = (draw.normal(1, heads, n, FEATURES) for heads in (HEADS, HEADS_K, HEADS_K))
    return query, key, value


def first_group(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Select the first batch element, its first key head, and that head's queries."""
    return [x[:1, : HEADS // HEADS_K if x.shape[1] == HEADS else 1] for x in tensors]


def flexibly(mode: str, inputs: tuple[Tensor, ...], causal: bool, window: tuple[int, int] | None) -> Subject:
    """Return FlexAttention under ``torch.compile``; it has no backward on the CPU and raises there."""

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j > i - WINDOW) if window else j <= i

    def make() -> Call:
        n = inputs[0].shape[-2]
        device = str(inputs[0].device)
        blocks = create_block_mask(near, None, None, n, n, device=device) if causal or window else None

        def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            output = flex_attention(query, key, value, block_mask=blocks, enable_gqa=True)
            assert isinstance(output, Tensor)
            return output

        return make_call(mode, compiled(compute), inputs)

    return Subject(flexible.NAME, make, compiles=True)


def step(settings: Settings, m: int, group: int, dtype: torch.dtype) -> Case:
    """Case of one query per head against m cached keys."""
    draw = Inputs(settings.device)
    size = torch.empty(0, dtype=dtype).element_size()
    batch = 1 if settings.quick else STEP_BYTES // (2 * STEP_HEADS_K * 4096 * STEP_FEATURES * size)
    heads = STEP_HEADS_K * group
    query = draw.normal(batch, heads, 1, STEP_FEATURES, dtype=dtype)
    key, value = (draw.normal(batch, STEP_HEADS_K, m, STEP_FEATURES, dtype=dtype) for _ in range(2))
    lengths = torch.full((batch,), m, device=settings.device)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pytorch.grouped_query_attention(query, key, value, key_lengths=lengths)[0]

    def dispatched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    def as_written(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        return torch.softmax((query @ key.mT) * STEP_FEATURES**-0.5, -1) @ value

    def formula(to: torch.dtype) -> Sequence[Tensor]:
        return (as_written(*(x[:1].to(to) for x in (query, key, value))),)

    inputs = query, key, value
    rivals: list[tuple[str, Callable[..., Tensor]]] = [(F_SDPA, dispatched), ("formula", as_written), (OURS, ours)]
    name = str(dtype).removeprefix("torch.")
    return Case(
        SUITE, f"step, {name}", FORWARD,
        sizes={"B": batch, "heads": heads, "heads_k": STEP_HEADS_K, "m": m, "d": STEP_FEATURES}, size=m,
        work=float(key.nbytes + value.nbytes), unit="B", ceiling="memory",
        subjects=[Subject(label, partial(make_call, FORWARD, compute, inputs)) for label, compute in rivals],
        formula=formula, comparable=lambda results: [x[:1] for x in results], baseline=F_SDPA, precision=dtype,
    )  # fmt: skip
