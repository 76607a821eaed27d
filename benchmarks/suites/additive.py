"""Additive attention, whole: projections, scores, softmax, values."""

import os
from collections.abc import Iterator

import torch
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks.case import OURS, Case, Subject, Thunk, compiled, differentiated, forward
from benchmarks.machine import installed
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
    for n in settings.chosen((128, 256, 512, 1024, 2048), (64, 128)):
        for mode in ("forward", "forward+backward"):
            yield case(settings, n, mode)


def case(settings: Settings, n: int, mode: str) -> Case:
    """One size."""
    draw = Inputs(settings.device)
    query, key, value = (draw.normal(BATCH, n, FEATURES) for _ in range(3))
    w_q, w_k = (draw.normal(HIDDEN, FEATURES, scale=FEATURES**-0.5) for _ in range(2))
    inputs = (query, key, value, w_q, w_k, draw.normal(HIDDEN))
    rows, take = draw.rows(n), differentiated if mode != "forward" else forward
    wanted = BATCH * n * n * HIDDEN * 4 * (1 if mode == "forward" else 3)
    too_large = f"its intermediates would take {wanted / 2**30:.0f} GiB" if wanted > MOST_BYTES else ""

    def exact() -> Tensor:
        first = query[:1, rows], key[:1], value[:1], *inputs[3:]
        return eager(*(x.double() for x in first))

    return Case(
        "additive", "additive attention", mode,
        {"B": BATCH, "n": n, "m": n, "h": HIDDEN, "d": FEATURES}, n,
        BATCH * n * n * HIDDEN * (1.0 if mode == "forward" else 2.0), "terms", "tanh",
        [
            Subject("eager", lambda: take(eager, inputs), too_large),
            Subject("torch.compile", lambda: take(compiled(eager), inputs), too_large),
            Subject(OURS, lambda: take(ours, inputs)),
            Subject("keras", lambda: keras_layer(inputs), keras_is_absent(mode)),
        ],
        exact, lambda out: out[:1, rows], memory=True,
    )  # fmt: skip


def keras_is_absent(mode: str) -> str:
    """Why Keras cannot be measured."""
    return "keras is not installed" if not installed("keras") else "" if mode == "forward" else "forward alone"


def keras_layer(inputs: tuple[Tensor, ...]) -> Thunk:
    """Keras' layer projects nothing: it is given projected queries and keys, and learns w_v as its scale."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    query, key, value, w_q, w_k, w_v = inputs
    layer = keras.layers.AdditiveAttention(use_scale=True)
    layer.build([(None, None, w_v.shape[0])] * 3)
    layer.scale.assign(w_v)
    return forward(lambda q, k, v: layer([q @ w_q.mT, v, k @ w_k.mT]), (query, key, value))
