"""Correct kernels that compute attention in different ways on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from math import e, log2, sqrt
from warnings import catch_warnings

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from examples.harnesses.harness import Call

TILE = 64

NOT_OFFERED = ("No viable backend", "No available kernel")
"""Beginnings of PyTorch's messages for a missing kernel, in different versions."""


@dataclass(frozen=True)
class Honest:
    """A correct kernel; its precision class is ``precision_prefix`` + dtype, or the default."""

    name: str
    output: Callable[[Call], Tensor]
    precision_prefix: str = ""


class NotOffered(Exception):
    """Raised if PyTorch has no such kernel for these inputs on this machine."""


def pytorch(backend: SDPBackend) -> Callable[[Call], Tensor]:
    """Make a kernel from one of PyTorch's own; it raises `NotOffered` where PyTorch has none."""

    def output(call: Call) -> Tensor:
        # Before it raises, PyTorch warns why a kernel is not available.
        with sdpa_kernel(backend), catch_warnings(action="ignore"):
            try:
                return scaled_dot_product_attention(
                    call.query, call.key, call.value, attn_mask=call.allowed, enable_gqa=True
                )
            except RuntimeError as error:
                if not str(error).startswith(NOT_OFFERED):
                    raise
                raise NotOffered from error

    return output


def by_element(kernel: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]) -> Callable[[Call], Tensor]:
    """Make a kernel of whole calls from one of batch elements; repeat keys per head."""

    def output(call: Call) -> Tensor:
        group = call.query.shape[1] // call.key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (call.key, call.value))
        return torch.stack([kernel(*x, call.allowed) for x in zip(call.query, key, value, strict=True)])

    return output


def scored(query: Tensor, key: Tensor, allowed: Tensor | None) -> Tensor:
    """Scaled and masked scores, in the dtype of the query."""
    scores = query @ key.mT / sqrt(query.shape[-1])
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def float32_sums(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention with operands and weights in the dtype of the inputs, everything else in float32."""
    weights = scored(query.float(), key.float(), allowed).softmax(-1)
    return (weights.to(query.dtype).float() @ value.float()).to(query.dtype)


def stored(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention whose every intermediate is stored in the dtype of the inputs."""
    return scored(query, key, allowed).softmax(-1) @ value


def online(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention by tiles of keys with running maximum and sum (online softmax), in float32."""
    scores = scored(query.float(), key.float(), allowed)
    largest = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    total, output = torch.zeros_like(largest), torch.zeros(*query.shape[:-1], value.shape[-1])
    for s, v in zip(torch.split(scores, TILE, -1), torch.split(value.float(), TILE, -2), strict=True):
        peak = torch.maximum(largest, s.amax(-1, keepdim=True))
        # Equal maxima may both be −∞, whose difference is NaN.
        rescale = torch.where(peak == largest, 1.0, (largest - peak).exp())
        weights = torch.where(s == -torch.inf, 0.0, (s - peak).exp())
        total, output, largest = total * rescale + weights.sum(-1, keepdim=True), output * rescale + weights @ v, peak
    return (output / total).to(query.dtype)


def powers_of_two(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Attention with 2ˣ in place of eˣ and log₂ e in the scale, in float32."""
    scores = scored(query.float() * log2(e), key.float(), allowed)
    weights = (scores - scores.amax(-1, keepdim=True)).exp2()
    return (weights @ value.float() / weights.sum(-1, keepdim=True)).to(query.dtype)


HONEST = (
    Honest("PyTorch, math", pytorch(SDPBackend.MATH)),
    Honest("PyTorch, flash", pytorch(SDPBackend.FLASH_ATTENTION)),
    Honest("PyTorch, memory-efficient", pytorch(SDPBackend.EFFICIENT_ATTENTION)),
    Honest("weights rounded, sums in float32", by_element(float32_sums)),
    Honest("every step stored", by_element(stored), "eager-"),
    Honest("online softmax", by_element(online)),
    Honest("2ˣ for eˣ", by_element(powers_of_two)),
)
