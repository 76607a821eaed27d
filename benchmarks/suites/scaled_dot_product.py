"""Suite of scaled dot-product attention with every kind of mask, against each of PyTorch's kernels."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import ATTENTION_PASSES, FORWARD, OURS, WITH_BACKWARD, Case, Subject, make_call
from benchmarks.suites.flexible import flexible
from benchmarks.suites.settings import Inputs, Settings, suffix

HEADS, FEATURES = 8, 64
MASKS = ("none", "causal", "boolean causal", "padding", "random")
F_SDPA = "F.sdpa"
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with n = m; the batch is 8 up to n = 1,024."""
    for n in settings.chosen((64, 128, 256, 512, 1024, 2048, 4096), (64,)):
        for name in MASKS:
            for mode in (FORWARD, WITH_BACKWARD):
                yield case(settings, n, name, mode)


def mask_of(name: str, batch: int, n: int, draw: Inputs) -> Tensor | None:
    """Return the mask that a user would pass, None for "none" and "causal"."""
    if name == "boolean causal":
        return torch.ones(n, n, dtype=torch.bool, device=draw.device).tril()
    if name == "padding":
        lengths = (n * (0.25 + 0.5 * torch.rand(batch, generator=draw.generator))).long().to(draw.device)
        return (torch.arange(n, device=draw.device) < lengths[:, None])[:, None, None]
    if name == "random":
        drawn = torch.rand(n, n, generator=draw.generator) < 0.7
        return (drawn | torch.eye(n, dtype=torch.bool)).to(draw.device)
    return None


def case(settings: Settings, n: int, name: str, mode: str, dtype: torch.dtype = torch.float32) -> Case:
    """Case of one size with one mask; its name has the dtype if that is not float32."""
    batch = 8 if n <= 1024 else 1
    draw = Inputs(settings.device)
    inputs = tuple(draw.normal(batch, HEADS, n, FEATURES, dtype=dtype) for _ in range(3))
    mask, causal, rows = mask_of(name, batch, n, draw), name == "causal", draw.rows(n)

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return pytorch.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    def dispatched(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)

    def restricted(backend: SDPBackend) -> Callable[..., Tensor]:
        def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                try:
                    return dispatched(query, key, value)
                except RuntimeError as error:
                    raise NotImplementedError(str(error).partition(". ")[0]) from error

        return compute

    def restricted_to(label: str, backend: SDPBackend) -> Subject:
        return Subject(label, lambda: make_call(mode, restricted(backend), inputs))

    def formula(precision: torch.dtype) -> Sequence[Tensor]:
        first_mask = torch.ones(n, n, dtype=torch.bool, device=draw.device).tril() if causal else mask
        if first_mask is not None and first_mask.dim() == 4:
            first_mask = first_mask[:1]

        def rows_of(row_indices: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            allowed = first_mask if first_mask is None or first_mask.shape[-2] == 1 else first_mask[row_indices]
            scores = (query[..., row_indices, :] @ key.mT) * FEATURES**-0.5
            if allowed is not None:
                scores = scores.masked_fill(~allowed, float("-inf"))
            return torch.softmax(scores, -1) @ value

        one_head = [x[:1, :1] for x in inputs]  # all others are computed alike, and double precision is slow
        return exact.expected(
            rows_of, one_head, rows, batched=3, dtype=precision, backward=mode == WITH_BACKWARD, chunk=512
        )

    return Case(
        "sdpa", name + suffix(dtype), mode, sizes={"B": batch, "heads": HEADS, "n": n, "m": n, "d": FEATURES}, size=n,
        work=4.0 * batch * HEADS * n * n * FEATURES * ATTENTION_PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=[
            Subject(F_SDPA, lambda: make_call(mode, dispatched, inputs)),
            *(restricted_to(label, backend) for label, backend in BACKENDS.items()),
            flexible(mode, inputs, mask=mask, causal=causal),
            Subject(OURS, lambda: make_call(mode, ours, inputs)),
        ],
        formula=formula, comparable=lambda results: exact.comparable([x[:1, :1] for x in results], rows, batched=3),
        baseline=F_SDPA, gains=True, precision=dtype,
    )  # fmt: skip
