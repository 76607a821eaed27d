"""Attention with the Gaussian, the general and the location score, against the formulas as they are written."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attnspec.backends import pytorch
from benchmarks.case import OURS, Case, Subject, differentiated, forward
from benchmarks.suites.settings import Inputs, Settings

BATCH, FEATURES = 4, 64


def gaussian(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Σ softmax(−½|q − k|²) v, with every difference."""
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)
    return torch.softmax(-0.5 * difference.square().sum(-1), -1) @ value


def general(query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    """softmax(q W k) v."""
    return torch.softmax(query @ w @ key.mT, -1) @ value


def location(query: Tensor, w: Tensor) -> Tensor:
    """W q."""
    return query @ w.mT


def cases(settings: Settings) -> Iterator[Case]:
    """n = m."""
    for n in settings.chosen((128, 512, 1024), (64,)):
        for mode in ("forward", "forward+backward"):
            for name in ("gaussian", "general", "location"):
                yield case(settings, n, name, mode)


def case(settings: Settings, n: int, name: str, mode: str) -> Case:
    """One scorer at one size."""
    draw = Inputs(settings.device)
    query, key, value = (draw.normal(BATCH, n, FEATURES, scale=0.5) for _ in range(3))
    w = draw.normal(FEATURES, FEATURES, scale=FEATURES**-0.5)
    locations = draw.normal(n, FEATURES, scale=FEATURES**-0.5)
    formulas: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "gaussian": (gaussian, pytorch.nadaraya_watson, (query, key, value)),
        "general": (general, pytorch.general_attention, (query, key, value, w)),
        "location": (location, pytorch.location_scores, (query, locations)),
    }
    eager, ours, inputs = formulas[name]
    rows, take = draw.rows(n), forward if mode == "forward" else differentiated

    def exact() -> Tensor:
        batched = 1 if name == "location" else 3
        first = [x[:1].double() if i < batched else x.double() for i, x in enumerate(inputs)]
        return eager(first[0][:, rows], *first[1:])

    return Case(
        "scorers", name, mode, {"B": BATCH, "n": n, "m": n, "d": FEATURES}, n,
        4.0 * BATCH * n * n * FEATURES, "FLOP", "matmul",
        [Subject("eager", lambda: take(eager, inputs)), Subject(OURS, lambda: take(ours, inputs))],
        exact, lambda out: out[:1, rows],
    )  # fmt: skip
