"""Base of modules with additive scores w_v·tanh(W_q q + W_k k)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import check_sizes


class AdditiveScorer(nn.Module):
    """The weights of additive scores: w_q (h, d_q), w_k (h, d_k) and w_v (h)."""

    named: ClassVar[Mapping[str, str]]
    """Argument names of the subclass, in order, mapped to the sizes d_q, d_k and h."""

    def __init__(self, d_q: int, d_k: int, h: int, *, device: Device, dtype: torch.dtype | None) -> None:
        super().__init__()
        sizes = {"d_q": d_q, "d_k": d_k, "h": h}
        check_sizes(type(self).__name__, **{name: sizes[size] for name, size in self.named.items()})
        self.w_q = parameter(h, d_q, device=device, dtype=dtype)
        self.w_k = parameter(h, d_k, device=device, dtype=dtype)
        self.w_v = parameter(h, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for w in (self.w_q, self.w_k, self.w_v):
            draw(linear_bound(w.shape[-1]), w)

    def extra_repr(self) -> str:
        """Show the sizes."""
        sizes = {"d_q": self.w_q.shape[1], "d_k": self.w_k.shape[1], "h": len(self.w_v)}
        return ", ".join(f"{name}={sizes[size]}" for name, size in self.named.items())
