"""Additive attention, whole: projections, scores, softmax, values."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import BOTH, FORWARD, OURS, Case, Subject, call_of, compiled
from benchmarks.suites import flexible, keras_layers
from benchmarks.suites.settings import Inputs, Settings

BATCH, HIDDEN, FEATURES = 4, 64, 64
MOST_BYTES = 6 * 2**30
"""What eager computation may take at the most for its (B, n, m, h) intermediates."""


def eager(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """softmax(w_vᵀ tanh(W_q q + W_k k)) v as the formula is written."""
    hidden = torch.tanh((query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3))
    return torch.softmax(hidden @ w_v, -1) @ value


def ours(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """The backend's."""
    return pytorch.additive_attention(query, key, value, w_q, w_k, w_v)


def cases(settings: Settings) -> Iterator[Case]:
    """n = m, forward and with backward."""
    for n in settings.chosen((128, 256, 512, 1024, 2048), (64,)):
        for mode in (FORWARD, BOTH):
            yield case(settings, n, mode)


def case(settings: Settings, n: int, mode: str) -> Case:
    """One size."""
    draw = Inputs(settings.device)
    query, key, value = (draw.normal(BATCH, n, FEATURES) for _ in range(3))
    w_q, w_k = (draw.normal(HIDDEN, FEATURES, scale=FEATURES**-0.5) for _ in range(2))
    inputs = (query, key, value, w_q, w_k, draw.normal(HIDDEN))
    rows = draw.rows(n)
    # sums and their tanh; the gradients of both besides
    wanted = BATCH * n * n * HIDDEN * 4 * (2 if mode == FORWARD else 4)
    too_large = f"its intermediates would take {wanted / 2**30:.0f} GiB" if wanted > MOST_BYTES else ""

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        def of(some: Tensor, query: Tensor, *others: Tensor) -> Tensor:
            return eager(query[:, some], *others)

        return exact.results(of, inputs, 3, rows, dtype=dtype, backward=mode == BOTH)

    return Case(
        "additive", "additive attention", mode,
        {"B": BATCH, "n": n, "m": n, "h": HIDDEN, "d": FEATURES}, n,
        BATCH * n * n * HIDDEN * (1.0 if mode == FORWARD else 2.0), "terms", "tanh",
        [
            Subject("eager", lambda: call_of(mode, eager, inputs), too_large),
            Subject("torch.compile", lambda: call_of(mode, compiled(eager), inputs), too_large, compiles=True),
            Subject(OURS, lambda: call_of(mode, ours, inputs)),
            keras_layers.additive(mode, inputs, too_large),
            Subject(flexible.NAME, lambda: call_of(mode, eager, inputs), flexible.NO_DOT_PRODUCT),
        ],
        formula, lambda found: exact.parts(found, 3, rows), memory=True, shared=3,
    )  # fmt: skip
