"""Scaled dot-product attention under every kind of mask, against each of PyTorch's own ways."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends import pytorch
from benchmarks.case import OURS, Case, Subject, Thunk, differentiated, forward
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
    for n in settings.chosen((64, 128, 256, 512, 1024, 2048, 4096), (64, 256)):
        for name in MASKS:
            for mode in ("forward", "forward+backward"):
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
    take = forward if mode == "forward" else differentiated

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)

    def forced(backend: SDPBackend) -> Callable[..., Tensor]:
        def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return plain(query, key, value)

        return compute

    def exact() -> Tensor:
        query, key, value = (x[:1, :1].double() for x in inputs)
        allowed = torch.ones(n, n, dtype=torch.bool, device=query.device).tril() if causal else mask
        if allowed is not None and allowed.dim() == 4:
            allowed = allowed[:1]
        if allowed is not None and allowed.shape[-2] == n:
            allowed = allowed[..., rows, :]
        return F.scaled_dot_product_attention(query[:, :, rows], key, value, attn_mask=allowed)

    def subject(label: str, backend: SDPBackend) -> Subject:
        return Subject(label, lambda: take(forced(backend), inputs), refusal(take(forced(backend), inputs)))

    return Case(
        "sdpa", name, mode, {"B": batch, "heads": HEADS, "n": n, "m": n, "d": FEATURES}, n,
        4.0 * batch * HEADS * n * n * FEATURES * (1.0 if mode == "forward" else 3.5), "FLOP", "matmul",
        [
            Subject(PLAIN, lambda: take(plain, inputs)),
            *(subject(label, backend) for label, backend in BACKENDS.items()),
            Subject(OURS, lambda: take(ours, inputs)),
        ],
        exact, lambda out: out[:1, :1, rows], baseline=PLAIN,
    )  # fmt: skip


def refusal(call: Thunk) -> str:
    """Why a backend of PyTorch does not take a call; empty if it does."""
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""
