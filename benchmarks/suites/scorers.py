"""Suite of Gaussian, general and location scores, against their formulas computed as written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks import exact
from benchmarks.case import FORWARD, OURS, PASSES, WITH_BACKWARD, Case, Subject, compiled, make_call
from benchmarks.suites import flexible, keras_layers
from benchmarks.suites.settings import Inputs, Settings

BATCH, FEATURES = 4, 64


def gaussian(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Σ softmax(−½|q − k|²) v, with all differences q − k in memory."""
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    return torch.softmax(-0.5 * difference.square().sum(-1), -1) @ value


def general(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    """softmax(q W k) v."""
    return torch.softmax(query @ w @ key.mT, -1) @ value


def location(query: Tensor, w: Tensor) -> Tensor:
    """W q."""
    return query @ w.mT


def key_term(key: Tensor) -> Tensor:
    """−½|k|²: the Gaussian score is q·k plus this, up to a constant of each query."""
    return -0.5 * key.square().sum(-1)


def gaussian_by_bias(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention with Gaussian scores as dot products with a bias, by PyTorch's operator."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask=key_term(key).unsqueeze(-2), scale=1.0)


def general_by_product(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    """Attention with general scores as dot products of projected queries."""
    return F.scaled_dot_product_attention(query @ w, key, value, scale=1.0)


@dataclass(frozen=True)
class Scorer:
    """Formula, operation of the backend, and PyTorch's fused kernel if it can compute the formula."""

    formula: Callable[..., Tensor]
    ours: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    batched: int
    fused: Callable[..., Tensor] | None
    flops: float


def scorers(draw: Inputs, n: int) -> dict[str, Scorer]:
    """All scorers by name, with their inputs at one size."""
    query, key, value = (draw.normal(BATCH, n, FEATURES, scale=0.5) for _ in range(3))
    w = draw.normal(FEATURES, FEATURES, scale=FEATURES**-0.5)
    locations = draw.normal(n, FEATURES, scale=FEATURES**-0.5)
    product, projection = 2.0 * BATCH * n * n * FEATURES, 2.0 * BATCH * n * FEATURES**2
    return {
        "gaussian": Scorer(gaussian, pytorch.nadaraya_watson, (query, key, value), 3, gaussian_by_bias, 2 * product),
        "general": Scorer(
            general, pytorch.general_attention, (query, key, value, w), 3, general_by_product, 2 * product + projection
        ),
        "location": Scorer(location, pytorch.location_scores, (query, locations), 1, None, product),
    }


def cases(settings: Settings) -> Iterator[Case]:
    """Cases with n = m."""
    for n in settings.chosen((128, 512, 1024), (64,)):
        for mode in (FORWARD, WITH_BACKWARD):
            for name in ("gaussian", "general", "location"):
                yield case(settings, n, name, mode)


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """Case of one scorer at one size."""
    draw = Inputs(settings.device)
    chosen, rows = scorers(draw, n)[name], draw.rows(n)
    inputs = chosen.inputs

    def formula(dtype: torch.dtype) -> Sequence[Tensor]:
        def rows_of(row_indices: Tensor, query: Tensor, *others: Tensor) -> Tensor:
            return chosen.formula(query[:, row_indices], *others)

        return exact.expected(
            rows_of, inputs, rows, batched=chosen.batched, dtype=dtype, backward=mode == WITH_BACKWARD
        )

    def subjects() -> Iterator[Subject]:
        yield Subject("eager", lambda: make_call(mode, chosen.formula, inputs))
        yield Subject("torch.compile", lambda: make_call(mode, compiled(chosen.formula), inputs), compiles=True)
        fused = chosen.fused
        if fused is None:
            for other in ("F.sdpa", flexible.NAME):
                yield Subject(other, lambda: make_call(mode, chosen.formula, inputs), "it returns no scores")
        else:
            yield Subject("F.sdpa", lambda: make_call(mode, fused, inputs))
            if name == "gaussian":
                yield flexible.flexible(mode, inputs, scale=1.0, key_term=key_term)
            else:
                yield flexible.flexible(mode, inputs, scale=1.0, project=torch.matmul)
        yield Subject(OURS, lambda: make_call(mode, chosen.ours, inputs))
        yield Subject(
            "keras", lambda: make_call(mode, chosen.formula, inputs), keras_layers.absent() or "it has no such layer"
        )

    return Case(
        "scorers", name, mode, sizes={"B": BATCH, "n": n, "m": n, "d": FEATURES}, size=n,
        work=chosen.flops * PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=list(subjects()), formula=formula,
        comparable=lambda results: exact.comparable(results, rows, batched=chosen.batched),
        shared=len(inputs) - chosen.batched,
    )  # fmt: skip
