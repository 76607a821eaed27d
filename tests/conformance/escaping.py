"""Wrong attentions that `quick` takes for right: what its laws do not try yet.

Each is the formula in PyTorch's operations, wrong where a name says so, as fast paths of inference, kernels for single
head sizes and adapters are. A law that convicts one makes it a mutant.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend

_check = Check("scaled_dot_product_attention")


class Attention(TorchBackend):
    """softmax(QKᵀ/√d)V, with 0 for rows without keys."""

    name = "attention"
    semantics: dict[str, str] = {"masked_nonfinite": "propagates"}  # noqa: RUF012 - a declaration

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        _check(query, key, value, mask, causal=causal)
        return self.attention(query, key, value, mask, causal)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        allowed = allowed if mask is None else allowed & mask
        scores = query @ key.mT / sqrt(query.shape[-1])
        if not key.shape[-2]:
            return scores @ value
        attends = allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~attends, 0.0)
        return scores.softmax(-1).masked_fill(~attends, 0.0) @ value


def without_last(key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """A call without its last key."""
    kept = mask if mask is None or mask.shape[-1] == 1 else mask[..., :-1]
    return key[..., :-1, :], value[..., :-1, :], kept


class CausalForgottenWithoutGradients(Attention):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        return super().attention(query, key, value, mask, causal and torch.is_grad_enabled())


class MaskForgottenInInferenceMode(Attention):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        return super().attention(query, key, value, None if torch.is_inference_mode_enabled() else mask, causal)


class LastKeyLostInDecoding(Attention):
    """Of at least 64 keys, for one query, without gradients."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if not torch.is_grad_enabled() and query.shape[-2] == 1 and key.shape[-2] >= 64:
            key, value, mask = without_last(key, value, mask)
        return super().attention(query, key, value, mask, causal)


class KeysKeptByAddressWithoutGradients(Attention):
    def __init__(self) -> None:
        self.kept: dict[tuple[object, ...], Tensor] = {}

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if not torch.is_grad_enabled():
            key = self.kept.setdefault((key.data_ptr(), key.shape, key.dtype), key.clone())
        return super().attention(query, key, value, mask, causal)


class MaskForgottenWhereRecorded(Attention):
    """The gradients are right."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        right = super().attention(query, key, value, mask, causal)
        if not right.requires_grad or mask is None:
            return right
        return right + (super().attention(query, key, value, None, causal) - right).detach()


class LastKeyLostWhereRecorded(Attention):
    """Of more than 64 keys; the gradients are right."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        right = super().attention(query, key, value, mask, causal)
        if not right.requires_grad or key.shape[-2] <= 64:
            return right
        return right + (super().attention(query, *without_last(key, value, mask), causal) - right).detach()


class UniformRowsWithoutGradients(Attention):
    """The choice is declared, and the values get no gradient of it."""

    semantics: dict[str, str] = {"masked_nonfinite": "propagates", "fully_masked": "uniform"}  # noqa: RUF012

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        right = super().attention(query, key, value, mask, causal)
        if mask is None or not key.shape[-2]:
            return right
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        attends = (mask & (allowed.tril() if causal else allowed)).any(-1, keepdim=True)
        return torch.where(attends, right, value.detach().mean(-2, keepdim=True))


@dataclass(frozen=True)
class Shown:
    """A call that shows what is wrong: shapes of queries, keys and a mask, options, and how it is made.

    ``calls`` are made with other numbers in the same memory. ``gradients`` says that those of the values show it.
    """

    queries: tuple[int, ...] = (3, 4)
    keys: tuple[int, ...] = (5, 4)
    mask: tuple[int, ...] = ()
    causal: bool = False
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    recorded: bool = False
    calls: int = 1
    gradients: bool = False

    def by(self, backend: Attention) -> Tensor:
        """The result of a backend, or its gradients, for numbers that are the same for all."""
        g = torch.Generator().manual_seed(0)
        query, key, value = (torch.zeros(shape) for shape in (self.queries, self.keys, self.keys))
        mask = torch.rand(self.mask, generator=g) < 0.5 if self.mask else None
        if self.gradients and mask is not None:
            mask[..., 0, :] = False
        with self.context():
            for _ in range(self.calls):
                for x in (query, key, value):
                    x.copy_(torch.randn(x.shape, generator=g))
                value = value.requires_grad_() if self.recorded else value
                found = backend.scaled_dot_product_attention(query, key, value, mask=mask, causal=self.causal)
        return torch.autograd.grad(found.sum(), value)[0] if self.gradients else found.detach()


ESCAPING: dict[type[Attention], Shown] = {
    CausalForgottenWithoutGradients: Shown(causal=True, context=torch.no_grad),
    MaskForgottenInInferenceMode: Shown(mask=(3, 5), context=torch.inference_mode),
    LastKeyLostInDecoding: Shown(queries=(1, 4), keys=(64, 4), context=torch.no_grad),
    KeysKeptByAddressWithoutGradients: Shown(calls=2, context=torch.no_grad),
    MaskForgottenWhereRecorded: Shown(mask=(3, 5), recorded=True),
    LastKeyLostWhereRecorded: Shown(keys=(65, 4), recorded=True),
    UniformRowsWithoutGradients: Shown(mask=(3, 5), recorded=True, gradients=True),
}
"""All of them, each with a call that shows it."""
