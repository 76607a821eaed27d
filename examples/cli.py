"""Command line of the examples: train a model, compare decodings, draw its attention."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from examples.bahdanau import Bahdanau
from examples.harnesses import table as rules
from examples.model import Model
from examples.picture import draw
from examples.tasks import TASKS, Pairs, Task
from examples.training import Plan, exact, learn
from examples.transformer import Transformer

app = typer.Typer(
    help="Train small models from scratch with the PyTorch backend, on two cores within minutes, and look at their "
    "attention.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TRAINED, HELD_OUT = 20_000, 1_000
"""Numbers of pairs for training, and of pairs held out for the test."""

BEAMS = 4

PASSING_SHARE = 0.98
"""Share of held-out targets that a trained model must spell exactly."""

MODELS: dict[type[Bahdanau | Transformer], Plan] = {
    Bahdanau: Plan(steps=1_200, batch=128, rate=4e-3),
    Transformer: Plan(steps=2_000, batch=128, rate=2e-3),
}


class TaskName(StrEnum):
    """Names of the tasks."""

    REVERSING = "reversing"
    DATES = "dates"


Tasks = Annotated[TaskName | None, typer.Option("--task", help="the task; default: both")]
Steps = Annotated[int | None, typer.Option(min=1, help="steps of training; default: enough to pass")]
Seed = Annotated[int, typer.Option(help="seed of the data, the weights and the batches")]
Out = Annotated[Path, typer.Option(file_okay=False, help="the folder for the pictures")]


@app.command()
def bahdanau(task: Tasks = None, steps: Steps = None, seed: Seed = 0, out: Out = Path()) -> None:
    """A recurrent encoder and decoder with Bahdanau's attention."""
    _run(Bahdanau, task, steps, seed, out)


@app.command()
def transformer(task: Tasks = None, steps: Steps = None, seed: Seed = 0, out: Out = Path()) -> None:
    """A transformer with two layers of encoder and decoder."""
    _run(Transformer, task, steps, seed, out)


@app.command()
def harnesses(
    harness: Annotated[rules.HarnessName | None, typer.Option(help="the harness; default: all")] = None,
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="the file for the page; default: print it")] = None,
) -> None:
    """List the wrong attentions that public harnesses accept, with the verdict of ``judge`` on each."""
    chosen = rules.HARNESSES.values() if harness is None else [rules.HARNESSES[harness]]
    page = rules.page(chosen, Console(stderr=True, highlight=False).print)
    if out is None:
        typer.echo(page, nl=False)
    else:
        out.write_text(page, encoding="utf-8")


def _run(kind: type[Bahdanau | Transformer], name: str | None, steps: int | None, seed: int, out: Path) -> None:
    """Train on one task or all; status 1 if a fully trained model fails."""
    out.mkdir(parents=True, exist_ok=True)
    plan = MODELS[kind] if steps is None else replace(MODELS[kind], steps=steps)
    passed = [train_and_report(kind, task, plan, seed, out) for task in TASKS.values() if name in (None, task.name)]
    if steps is None and not all(passed):
        raise typer.Exit(1)


def train_and_report(kind: type[Bahdanau | Transformer], task: Task, plan: Plan, seed: int, out: Path) -> bool:
    """Train a model, print its accuracy, draw its attention; return whether it passes."""
    console = Console()
    torch.manual_seed(seed)
    title = f"{kind.__name__} on {task.name}"
    pairs, held_out = task.split(TRAINED, HELD_OUT, seed)
    model = kind(task)
    seconds = learn(model, pairs, plan, title=title)
    model.eval()
    with torch.no_grad():
        tokens_by_decoding = decode_every_way(model, held_out, task)
        agree = all(torch.equal(x, tokens_by_decoding["greedy"]) for x in list(tokens_by_decoding.values())[:3])
        console.print(f"{title}: {len(held_out):,} held-out pairs after {seconds:.0f} s", soft_wrap=True)
        table = Table("decoding", "exact")
        for decoding, decoded_tokens in tokens_by_decoding.items():
            table.add_row(decoding, f"{exact(decoded_tokens, held_out):.1%}")
        console.print(table)
        console.print(f"greedy, uncached and beam of 1 {'agree on every token' if agree else 'DIFFER'}")
        if task.aligned:
            console.print(f"largest weight where the character stands, ± 1: {pointing(model, held_out, task):.1%}")
        path = out / f"{kind.__name__.lower()}-{task.name}.png"
        picture(model, held_out, task, title, path)
        console.print(f"attention: {path}", soft_wrap=True)
    return agree and exact(tokens_by_decoding["greedy"], held_out) >= PASSING_SHARE


def decode_every_way(model: Model, pairs: Pairs, task: Task) -> dict[str, Tensor]:
    """Return the tokens of every way of decoding; the first three are one search and must agree."""
    steps = task.longest_target + 1
    decodings: dict[str, Callable[[], Tensor]] = {
        "greedy": lambda: model.greedy(pairs, steps),
        "greedy, uncached": lambda: model.greedy_uncached(pairs, steps),
        "beam of 1": lambda: model.beam(pairs, steps, 1),
        f"beam of {BEAMS}": lambda: model.beam(pairs, steps, BEAMS),
    }
    return {name: decode() for name, decode in decodings.items()}


def pointing(model: Model, pairs: Pairs, task: Task) -> float:
    """Return the share of steps whose largest weight is within one position of the character."""
    assert task.aligned is not None
    positions = model.attention(pairs).argmax(-1)
    expected = task.aligned(pairs.lengths[:, None], torch.arange(positions.shape[-1]))
    characters = pairs.target_mask & (expected >= 0)
    return float(((positions - expected).abs() <= 1)[characters].float().mean())


def picture(model: Model, pairs: Pairs, task: Task, title: str, path: Path) -> None:
    """Draw the attention for the longest source."""
    chosen = pairs.at(pairs.lengths.argmax()[None])
    source = "".join(task.source_vocabulary[i] for i in chosen.sources[0, : chosen.lengths[0]])
    target = task.text(chosen.targets[0].tolist())
    weights = model.attention(chosen)[0, : len(target) + 1, : len(source)]
    draw(weights, source, [*target, "<eos>"], title, path)
