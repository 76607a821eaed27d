"""Training by teacher forcing, and the share of targets that a model spells exactly."""

import math
import time
from dataclasses import dataclass

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from examples.model import Model
from examples.tasks import Pairs

LARGEST_NORM = 1.0
"""Largest norm of the gradients; larger ones are scaled down to it."""


@dataclass(frozen=True)
class Plan:
    """Number of steps, batch size and largest learning rate."""

    steps: int
    batch: int
    rate: float


def learn(model: Model, pairs: Pairs, plan: Plan, *, title: str) -> float:
    """Train with Adam and a learning rate that rises and falls once; return the seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, plan.steps)
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[shown]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task(title, total=plan.steps, shown="")
        for step in range(plan.steps):
            loss = mean_negative_log_probability(model, pairs.at(torch.randint(len(pairs), (plan.batch,))))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)
            optimizer.step()
            schedule.step()
            progress.update(bar, completed=step + 1, shown=f"{loss.item() / math.log(2):.3f} bits a token")
    return time.monotonic() - start


def mean_negative_log_probability(model: Model, pairs: Pairs) -> Tensor:
    """Mean of −log P over the tokens of the targets, up to and including <eos>."""
    logarithms = model.log_probabilities(pairs).gather(-1, pairs.targets[..., None])[..., 0]
    return -logarithms[pairs.target_mask].mean()


def exact(tokens: Tensor, pairs: Pairs) -> float:
    """Share of the targets that ``tokens`` match up to <eos>."""
    return float(((tokens == pairs.targets) | ~pairs.target_mask).all(-1).float().mean())
