"""Subjects with Keras' attention layers, measured only if Keras is installed."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from benchmarks.case import FORWARD, Call, Subject, forward, forward_backward
from benchmarks.machine import installed


def absent() -> str:
    """Return the reason why Keras cannot be measured; empty if it can."""
    if not installed("keras"):
        return "keras is not installed"
    backend = os.environ.setdefault("KERAS_BACKEND", "torch")
    return "" if backend == "torch" else f"KERAS_BACKEND is {backend}"


def additive(mode: str, inputs: tuple[Tensor, ...], too_large: str) -> Subject:
    """Return Keras' ``AdditiveAttention`` on projected queries and keys; its scale is w_v."""

    def make() -> Call:
        import keras

        *projected, w_v = inputs
        with keras.device(str(w_v.device)):
            layer = keras.layers.AdditiveAttention(use_scale=True)
            layer.build([(None, None, len(w_v))] * 3)
            layer.scale.assign(w_v)

        def compute(query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
            return _called(w_v, lambda: layer([query @ w_q.mT, value, key @ w_k.mT]))

        return _call(mode, compute, projected, [layer.scale.value])

    return Subject("keras", make, absent() or too_large)


def multi_head(mode: str, inputs: tuple[Tensor, ...], causal: bool) -> Subject:
    """Return Keras' ``MultiHeadAttention``, whose weights are (d, heads, p) and (heads, p, d)."""

    def make() -> Call:
        import keras

        x, *projections, w_o = inputs
        heads, p, d = projections[0].shape
        with keras.device(str(x.device)):
            layer = keras.layers.MultiHeadAttention(heads, p, use_bias=False)
            layer(x[:, :1], x[:, :1])
            weights = [*(w.permute(2, 0, 1) for w in projections), w_o.mT.reshape(heads, p, d)]
            for variable, w in zip(layer.trainable_variables, weights, strict=True):
                variable.assign(w)

        def rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
            *first, last = gradients
            return [*(g.permute(1, 2, 0) for g in first), last.reshape(heads * p, d).mT]

        def compute(x: Tensor) -> Tensor:
            return _called(x, lambda: layer(x, x, use_causal_mask=causal))

        return _call(mode, compute, [x], [v.value for v in layer.trainable_variables], rearrange)

    return Subject("keras", make, absent())


def _called(like: Tensor, call: Callable[[], Any]) -> Tensor:
    """Call on the device of a tensor; otherwise Keras moves inputs to another."""
    import keras

    with keras.device(str(like.device)):
        out: Tensor = call()
        return out


def _call(
    mode: str,
    compute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    rearrange: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda gradients: gradients,
) -> Call:
    return forward(compute, inputs) if mode == FORWARD else forward_backward(compute, inputs, parameters, rearrange)
