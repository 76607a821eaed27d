"""Scaled dot-product attention under every kind of mask, against each of PyTorch's own ways."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import BOTH, FORWARD, OURS, Case, Subject, call_of
from benchmarks.suites.flexible import flexible
from benchmarks.suites.settings import Inputs, Settings

HEADS, FEATURES = 8, 64
MASKS = ("none", "causal", "boolean causal", "padding", "random")
PLAIN = "F.sdpa"
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def cases(settings: Settings) -> Iterator[Case]:
    """n = m from 64 on; a batch of 8 up to 1,024, then of 1."""
    for n in settings.chosen((64, 128, 256, 512, 1024, 2048, 4096), (64,)):
        for name in MASKS:
            for mode in (FORWARD, BOTH):
                yield case(settings, n, name, mode)


def mask_of(name: str, batch: int, n: int, draw: Inputs) -> Tensor | None:
    """The mask as a user would pass it; none for what has a flag of its own."""
    if name == "boolean causal":
        return torch.ones(n, n, dtype=torch.bool, device=draw.device).tril()
    if name == "padding":
        lengths = (n * (0.25 + 0.5 * torch.rand(batch, generator=draw.generator))).long().to(draw.device)
        return (torch.arange(n, device=draw.device) < lengths[:, None])[:, None, None]
    if name == "random":
        drawn = torch.rand(n, n, generator=draw.generator) < 0.7
        return (drawn | torch.eye(n, dtype=torch.bool)).to(draw.device)
    return None


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """One size under one mask."""
    batch = 8 if n <= 1024 else 1
    draw = Inputs(settings.device)
    inputs = tuple(draw.normal(batch, HEADS, n, FEATURES) for _ in range(3))
    mask, causal, rows = mask_of(name, batch, n, draw), name == "causal", draw.rows(n)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)

    def forced(backend: SDPBackend) -> Callable[..., Tensor]:
        def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                try:
                    return plain(query, key, value)
                except RuntimeError as error:
                    raise NotImplementedError(str(error).partition(". ")[0]) from error

        return compute

    def forced_to(label: str, backend: SDPBackend) -> Subject:
        return Subject(label, lambda: call_of(mode, forced(backend), inputs))

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        first = torch.ones(n, n, dtype=torch.bool, device=draw.device).tril() if causal else mask
        if first is not None and first.dim() == 4:
            first = first[:1]

        def of(some: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            allowed = first if first is None or first.shape[-2] == 1 else first[some]
            scores = (query[..., some, :] @ key.mT) * FEATURES**-0.5
            if allowed is not None:
                scores = scores.masked_fill(~allowed, float("-inf"))
            return torch.softmax(scores, -1) @ value

        one_head = [x[:1, :1] for x in inputs]
        return exact.results(of, one_head, 3, rows, dtype=dtype, backward=mode == BOTH, chunk=512)

    return Case(
        "sdpa", name, mode, {"B": batch, "heads": HEADS, "n": n, "m": n, "d": FEATURES}, n,
        4.0 * batch * HEADS * n * n * FEATURES * (1.0 if mode == FORWARD else 3.5), "FLOP", "matmul",
        [
            Subject(PLAIN, lambda: call_of(mode, plain, inputs)),
            *(forced_to(label, backend) for label, backend in BACKENDS.items()),
            flexible(mode, inputs, mask=mask, causal=causal),
            Subject(OURS, lambda: call_of(mode, ours, inputs)),
        ],
        formula, lambda found: exact.parts([x[:1, :1] for x in found], 3, rows), baseline=PLAIN,
    )  # fmt: skip
