"""Wrong implementations that `quick` takes for right: what its laws do not try yet.

Attention is the formula in PyTorch's operations with a backward pass of its own, other operations are those of the
PyTorch backend; each is wrong where a name says so, as kernels for single sizes, fast paths of inference and buffers
are. A law that convicts one makes it a mutant.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.pytorch.transformer import EPSILON
from attnspec.spec import GRUParameters, LayerNormParameters

ATTENTION = "scaled_dot_product_attention"
TILE = 64
"""Positions of a tile, where a kernel has tiles."""

_check = Check(ATTENTION)


# Attention ------------------------------------------------------------------------------------------------------------


class _Recorded(torch.autograd.Function):
    """Attention, of which the backend itself says what it keeps for its gradients, and how it computes them."""

    @staticmethod
    def forward(
        ctx: Any, backend: "Attention", query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        allowed = backend.allowed(query, key, mask, causal)
        result = backend.weights(query, key, allowed) @ value
        ctx.backend, ctx.causal = backend, causal
        given = {"query": query, "key": key, "value": value, "result": result}
        ctx.kept = backend.kept(given if mask is None else {**given, "mask": mask}, allowed)
        return result

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.backend.gradients(ctx.kept, ctx.causal, *cotangents), None, None


class Attention(TorchBackend):
    """softmax(QKᵀ/√d)V, with 0 for rows without keys.

    Of what gradients need it keeps copies, but for what is named in ``by_reference``.
    """

    name = "attention"
    semantics: dict[str, str] = {"masked_nonfinite": "propagates"}  # noqa: RUF012 - a declaration
    by_reference: tuple[str, ...] = ()

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        _check(query, key, value, mask, causal=causal)
        return self.attention(query, key, value, mask, causal)

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        result: Tensor = _Recorded.apply(self, query, key, value, mask, causal)  # type: ignore[no-untyped-call]
        return result

    def allowed(self, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        return allowed if mask is None else allowed & mask

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT / sqrt(query.shape[-1])

    def weights(self, query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
        scores, attends = self.scores(query, key), allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~attends, 0.0)
        return scores.softmax(-1).masked_fill(~attends, 0.0)

    def kept(self, given: Mapping[str, Tensor], allowed: Tensor) -> dict[str, Tensor]:
        return {name: x.detach() if name in self.by_reference else x.detach().clone() for name, x in given.items()}

    def weights_again(self, kept: Mapping[str, Tensor], allowed: Tensor) -> Tensor:
        return self.weights(kept["query"], kept["key"], allowed)

    def gradients(self, kept: Mapping[str, Tensor], causal: bool, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Those of queries, keys and values."""
        query, key, value = kept["query"], kept["key"], kept["value"]
        weights = self.weights_again(kept, self.allowed(query, key, kept.get("mask"), causal))
        delta = (cotangent * kept["result"]).sum(-1, keepdim=True)
        of_scores = weights * (cotangent @ value.mT - delta) / sqrt(query.shape[-1])
        found = of_scores @ key, of_scores.mT @ query, weights.mT @ cotangent
        return tuple(gradient.sum_to_size(x.shape) for gradient, x in zip(found, (query, key, value), strict=True))


class InputsKeptByReference(Attention):
    """What is written to them before the backward pass changes its gradients, where PyTorch's own raise."""

    by_reference = ("query", "key", "value")


class ResultKeptByReference(Attention):
    """As above."""

    by_reference = ("result",)


class MaskKeptByReference(Attention):
    """As above."""

    by_reference = ("mask",)


class StatisticsInOneBuffer(Attention):
    """The logarithm of each row's sum of exponentials, kept for the backward pass by shape: the next forward's."""

    def __init__(self) -> None:
        self.buffers: dict[torch.Size, Tensor] = {}

    def exponents(self, query: Tensor, key: Tensor, allowed: Tensor) -> Tensor:
        return self.scores(query, key).masked_fill(~allowed, -torch.inf)

    def kept(self, given: Mapping[str, Tensor], allowed: Tensor) -> dict[str, Tensor]:
        found = self.exponents(given["query"], given["key"], allowed).logsumexp(-1, keepdim=True)
        buffer = self.buffers.setdefault(found.shape, torch.empty_like(found)).copy_(found)
        return {**super().kept(given, allowed), "statistics": buffer}

    def weights_again(self, kept: Mapping[str, Tensor], allowed: Tensor) -> Tensor:
        statistics = kept["statistics"].masked_fill(kept["statistics"] == -torch.inf, 0.0)
        return (self.exponents(kept["query"], kept["key"], allowed) - statistics).exp()


class CausalTileSeenWholeWithoutGradients(Attention):
    """At least 64 queries see the keys up to the end of their tile."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        n, m = query.shape[-2], key.shape[-2]
        if causal and n >= TILE and not torch.is_grad_enabled():
            seen = torch.arange(m) < (torch.arange(n)[:, None] // TILE + 1) * TILE
            return super().attention(query, key, value, seen if mask is None else seen & mask, False)
        return super().attention(query, key, value, mask, causal)


class RowsOfTheMaskRepeatWithoutGradients(Attention):
    """Of more than 64."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        n = query.shape[-2]
        if mask is not None and mask.shape[-2] == n > TILE and not torch.is_grad_enabled():
            mask = mask[..., torch.arange(n) % TILE, :]
        return super().attention(query, key, value, mask, causal)


class LastTileNotCausalWhereRecorded(Attention):
    """Of more than 64 queries; the gradients are right."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        right, n = super().attention(query, key, value, mask, causal), query.shape[-2]
        if not right.requires_grad or not causal or n <= TILE:
            return right
        wrong = (super().attention(query, key, value, mask, False) - right).detach()
        wrong[..., : n // TILE * TILE, :] = 0
        return right + wrong


class MaskForgottenForOneTensorWithoutGradients(Attention):
    """That is queries, keys and values."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        packed = query is key is value and not torch.is_grad_enabled()
        return super().attention(query, key, value, None if packed else mask, causal)


class GradientOfOneTensorTwiceThatOfQueries(Attention):
    """Where queries and keys are one tensor, scores are taken for symmetric."""

    def kept(self, given: Mapping[str, Tensor], allowed: Tensor) -> dict[str, Tensor]:
        query, key = given["query"], given["key"]
        one = query.data_ptr() == key.data_ptr() and query.shape == key.shape and query.stride() == key.stride()
        return {**super().kept(given, allowed), **({"one": query} if one and query.numel() else {})}

    def gradients(self, kept: Mapping[str, Tensor], causal: bool, cotangent: Tensor) -> tuple[Tensor, ...]:
        query, key, value = super().gradients(kept, causal, cotangent)
        return query, query if "one" in kept else key, value


class LastFourOfHundredFeatures(Attention):
    """Of more than 80 features, the last four fall out of the scores where they are half of eight."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        d = query.shape[-1]
        counted = d - 4 if d > 80 and d % 8 == 4 else d
        return query[..., :counted] @ key[..., :counted].mT / sqrt(d)


class PositionalFeaturesBeyondThe512th(Attention):
    """Multi-head latent attention has 576 features, and values of 512."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query[..., :512] @ key[..., :512].mT / sqrt(query.shape[-1])


class MaskOfTheFirstElementForAll(Attention):
    """Where a mask of at least 32 keys is expanded over heads."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if mask is not None and mask.dim() == 4 and mask.shape[-1] >= 32 and mask.shape[1] > 1 and not mask.stride(1):
            mask = mask[:1]
        return super().attention(query, key, value, mask, causal)


class LongCotangentReadDensely(Attention):
    """Of at least 64 rows, which are those of heads behind positions."""

    def gradients(self, kept: Mapping[str, Tensor], causal: bool, cotangent: Tensor) -> tuple[Tensor, ...]:
        *_, n, d = cotangent.shape
        if n >= TILE and cotangent.stride(-1) == 1 and cotangent.stride(-2) > d:
            cotangent = cotangent.as_strided(cotangent.shape, (*cotangent.stride()[:-2], d, 1))
        return super().gradients(kept, causal, cotangent)


class NaNOfQueriesHidden(Attention):
    """Their rows are 0, as where a maximum ignores NaN."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        right = super().attention(query, key, value, mask, causal)
        return torch.where(query.isnan().any(-1, keepdim=True), 0.0, right)


class ScoresOfAtMost10000(Attention):
    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key).clamp(-1e4, 1e4)


# Other operations -----------------------------------------------------------------------------------------------------


class LayerNorm(TorchBackend):
    """That of the PyTorch backend."""

    name = "layer norm"

    def layer_norm(self, x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
        return pytorch.layer_norm(x, parameters)


class MomentsOf1024Features(LayerNorm):
    def layer_norm(self, x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
        if x.shape[-1] <= 1024:
            return super().layer_norm(x, parameters)
        variance, mean = torch.var_mean(x[..., :1024], -1, correction=0, keepdim=True)
        return (x - mean) / (variance + EPSILON).sqrt() * parameters.gain + parameters.bias


class ParametersGetGradientsOf256Rows(LayerNorm):
    def layer_norm(self, x: Tensor, parameters: LayerNormParameters[Tensor]) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) <= 256:
            return super().layer_norm(x, parameters)
        fixed = LayerNormParameters(parameters.gain.detach(), parameters.bias.detach())
        parts = super().layer_norm(rows[:256], parameters), super().layer_norm(rows[256:], fixed)
        return torch.cat(parts).reshape(x.shape)


class Softmax(TorchBackend):
    """That of the PyTorch backend."""

    name = "softmax"

    def softmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return pytorch.softmax(scores, mask=mask)


class KeysCountedIn16Bits(Softmax):
    def softmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        n, m = scores.shape[-2:]
        if m <= 1 << 16:
            return super().softmax(scores, mask=mask)
        counted = (torch.arange(m) < 1 << 16).expand(n, m)
        return super().softmax(scores, mask=counted if mask is None else counted & mask)


class GRU(TorchBackend):
    """That of the PyTorch backend."""

    name = "GRU"

    def gru(
        self, x: Tensor, state: Tensor, parameters: GRUParameters[Tensor], *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return pytorch.gru(x, state, parameters, lengths=lengths)


class LengthOfTheFirstElementForAllWithoutGradients(GRU):
    """Of more than 8 steps."""

    def gru(
        self, x: Tensor, state: Tensor, parameters: GRUParameters[Tensor], *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if lengths is not None and lengths.numel() and x.shape[-2] > 8 and not torch.is_grad_enabled():
            lengths = lengths.flatten()[0].expand_as(lengths)
        return super().gru(x, state, parameters, lengths=lengths)
