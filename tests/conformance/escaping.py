"""Wrong implementations that the profile `quick` accepts, since none of its laws tries them yet.

Each class is named after its error. The correct parts are PyTorch operations or functions of the PyTorch backend.
Once a law convicts an implementation, it moves to the mutants, as do all that `full` convicts.
"""

from math import sqrt

import torch
from torch import Tensor

from attnspec.backends import pytorch
from attnspec.backends.bases.shapes import Check
from attnspec.backends.bases.torch import TorchBackend
from attnspec.spec import LayerNormParameters

ATTENTION = "scaled_dot_product_attention"
_check = Check(ATTENTION)


# Attention ------------------------------------------------------------------------------------------------------------


class Attention(TorchBackend):
    """softmax(QKᵀ/√d)V, with 0 for rows without keys."""

    name = "attention"
    semantics: dict[str, str] = {"masked_nonfinite": "propagates"}  # noqa: RUF012 - a declaration

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        _check(query, key, value, mask, causal=causal)
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        allowed = allowed if mask is None else allowed & mask
        scores, attends = self.scores(query, key), allowed.any(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~attends, 0.0)
        return scores.softmax(-1).masked_fill(~attends, 0.0) @ value

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT / sqrt(query.shape[-1])


class PositionalFeaturesBeyondThe512th(Attention):
    """Scores use the first 512 features only; multi-head latent attention has 576."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query[..., :512] @ key[..., :512].mT / sqrt(query.shape[-1])


# Other operations -----------------------------------------------------------------------------------------------------


class LayerNorm(TorchBackend):
    name = "layer norm"

    def layer_norm(self, x: Tensor, parameters: LayerNormParameters[Tensor], *, epsilon: float = 1e-5) -> Tensor:
        return pytorch.layer_norm(x, parameters, epsilon=epsilon)


class ParametersGetGradientsOf256Rows(LayerNorm):
    def layer_norm(self, x: Tensor, parameters: LayerNormParameters[Tensor], *, epsilon: float = 1e-5) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) <= 256:
            return super().layer_norm(x, parameters, epsilon=epsilon)
        detached = LayerNormParameters(parameters.gain.detach(), parameters.bias.detach())
        parts = [
            super().layer_norm(rows[:256], parameters, epsilon=epsilon),
            super().layer_norm(rows[256:], detached, epsilon=epsilon),
        ]
        return torch.cat(parts).reshape(x.shape)


class Softmax(TorchBackend):
    name = "softmax"

    def softmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return pytorch.softmax(scores, mask=mask)


class KeysCountedIn16Bits(Softmax):
    def softmax(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        n, m = scores.shape[-2:]
        if m <= 1 << 16:
            return super().softmax(scores, mask=mask)
        first_keys = (torch.arange(m) < 1 << 16).expand(n, m)
        return super().softmax(scores, mask=first_keys if mask is None else first_keys & mask)
