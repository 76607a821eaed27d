"""Generator of the figures of the documentation: ``python docs/figures.py`` needs the extras ``torch`` and ``plot``."""

from pathlib import Path

import numpy as np
import torch
from matplotlib import rcParams
from matplotlib.figure import Figure
from torch import Tensor

from attnspec import reference
from attnspec.reference.budget import judged
from attnspec.spec import precision

PICTURES = Path(__file__).parent / "pictures"
BF16 = torch.bfloat16


def attention(
    query: Tensor, key: Tensor, value: Tensor, scores: torch.dtype = torch.float32, error: float = 0.0
) -> Tensor:
    """Attention whose scores are stored in the dtype ``scores``, with a relative error of their scale."""
    stored = (query.to(scores) @ key.to(scores).mT / query.shape[-1] ** 0.5 * (1 + error)).to(scores)
    weights: Tensor = stored.float().softmax(-1).to(BF16).float()
    return (weights @ value.float()).to(BF16)


def errors_over_budgets() -> None:
    """Draw the error ratios of right and wrong kernels in bfloat16."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(512, 64, dtype=torch.float32).to(BF16) for _ in range(3))
    names = {name: x.double().numpy() for name, x in (("query", query), ("key", key), ("value", value))}
    shifted = torch.cat([key[1:], key[:1]])
    kernels = {
        "scores in float32": attention(query, key, value),
        "scores stored in bfloat16": attention(query, key, value, BF16),
        "scale 5 % off": attention(query, key, value, error=0.05),
        "last key left out": attention(query, key[:-1], value[:-1]),
        "keys moved by one": attention(query, shifted, value),
    }
    oracle = judged(reference.scaled_dot_product_attention, names, precision("mixed-bfloat16"))
    figure = Figure(figsize=(7, 3.4))
    axes = figure.subplots()
    edges = np.geomspace(1e-4, 1e4, 121)
    for at, (name, result) in enumerate(kernels.items()):
        ratios = (np.abs(result.double().numpy() - oracle.value) / oracle.budget).ravel()
        counts, _ = np.histogram(ratios.clip(edges[0], edges[-1]), edges)
        worst = float(ratios.max())
        color, verdict = ("C0", "within budget") if worst <= 1 else ("C3", f"up to {worst:.3g} times the budget")
        axes.fill_between(edges[:-1], -at, -at + 0.8 * counts / counts.max(), step="post", color=color)
        axes.text(1.3e-4, -at + 0.35, f"{name}: {verdict}", fontsize=9)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xscale="log", xlim=(1e-4, 1e4), yticks=[], xlabel="error / budget of each number (1 is the limit)")
    figure.tight_layout()
    figure.savefig(PICTURES / "budget.svg", metadata={"Date": None})


def alignments() -> None:
    """Draw a causal mask of 3 queries and 5 keys in both alignments."""
    figure = Figure(figsize=(6, 2.1))
    for axes, (name, offset) in zip(figure.subplots(1, 2), {"top-left": 0, "bottom-right": 2}.items(), strict=True):
        axes.imshow(np.tri(3, 5, offset), cmap="Blues", vmin=0, vmax=1.6)
        axes.set(title=name, xlabel="key", ylabel="query", xticks=range(5), yticks=range(3))
        axes.set_xticks(np.arange(-0.5, 5), minor=True)
        axes.set_yticks(np.arange(-0.5, 3), minor=True)
        axes.grid(which="minor", color="white", linewidth=2)
        axes.tick_params(which="minor", length=0)
    figure.tight_layout()
    figure.savefig(PICTURES / "causal.svg", metadata={"Date": None})


if __name__ == "__main__":
    rcParams["svg.hashsalt"], rcParams["svg.fonttype"] = "attnspec", "none"
    errors_over_budgets()
    alignments()
