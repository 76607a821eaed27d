"""Generator of ``table.md``: wrong and correct attentions, judged by each harness and by ``judge``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

import torch
from torch import Tensor

from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses import flash_attention, flashinfer_bench, gpu_mode, hugging_face, kernelbench
from examples.harnesses.harness import Call, Harness
from examples.harnesses.honest import HONEST, NotOffered
from examples.harnesses.wrong import WRONG


class Name(StrEnum):
    """Names of the harnesses."""

    KERNELBENCH = "kernelbench"
    FLASHINFER_BENCH = "flashinfer-bench"
    GPU_MODE = "gpu-mode"
    HUGGING_FACE = "hugging-face"
    FLASH_ATTENTION = "flash-attention"


HARNESSES = {
    Name.KERNELBENCH: kernelbench.HARNESS,
    Name.FLASHINFER_BENCH: flashinfer_bench.HARNESS,
    Name.GPU_MODE: gpu_mode.HARNESS,
    Name.HUGGING_FACE: hugging_face.HARNESS,
    Name.FLASH_ATTENTION: flash_attention.HARNESS,
}

HEAD = """# What the rules accept

Made by `python -m examples harnesses --out examples/harnesses/table.md`, with PyTorch {torch}, NumPy {numpy}, on the
CPU. [README.md](README.md) says where the rules come from and what is tried.
"""
CHEAPEST = """## The cheapest wrong attention that a rule accepts

Operations are a share of those of attention; the last column is the largest error over its budget.
"""
TAKEN = """## Wrong attentions that `judge` takes

What is smaller than all roundings together does not show in one result. Where `verdict.cannot_see` names something, the
last column does, too: `suggest_inputs` gives inputs that show it.
"""
LEGEND = """Each cell is what the rule says, and the largest error over its budget: above 1, `judge` convicts; × where
it convicts what is within it."""


@dataclass(frozen=True)
class Found:
    """Verdicts of a rule and of ``judge`` on an output; ``work`` is its share of the operations of attention.

    ``taken``: ``judge`` accepts it. ``factor``: largest error over its budget. ``hidden``: mistakes that the inputs
    cannot show.
    """

    name: str
    work: float
    accepted: bool
    taken: bool
    factor: str
    hidden: tuple[str, ...] = ()

    @property
    def cell(self) -> str:
        """Cell with the rule's verdict and the factor."""
        return f"{'accepted' if self.accepted else 'rejected'}, {self.factor}"


def factor(verdict: Verdict) -> str:
    """Largest error over its budget; × where ``judge`` convicts although no error exceeds its budget."""
    if verdict.worst is None and not verdict:
        return "×"
    ratio = verdict.ratio if verdict.worst is None else verdict.worst.ratio
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}" if ratio < 1e6 else "∞"


@dataclass(frozen=True)
class Setting:
    """Verdicts on one of a harness's inputs, by name: wrong attentions, cheapest first, and honest kernels."""

    title: str
    wrong: Mapping[str, Found]
    honest: Mapping[str, Found]

    @property
    def cheapest(self) -> Found | None:
        """Cheapest wrong attention that the rule accepts; None if it accepts none."""
        return next((found for found in self.wrong.values() if found.accepted), None)


def tried(harness: Harness, title: str, call: Call) -> Setting:
    """Try every wrong attention that applies to these inputs, and every available honest kernel."""
    reference = harness.reference(call)

    def found(name: str, work: int, output: Tensor, precision: str | None = None, *, right: bool = False) -> Found:
        verdict = harness.judged(output, call, precision)
        hidden = () if right else verdict.cannot_see
        return Found(name, work / call.work, harness.accepts(output, reference), bool(verdict), factor(verdict), hidden)

    dtype = str(call.query.dtype).removeprefix("torch.")
    wrong, honest = {}, {}
    for w in sorted(WRONG, key=lambda w: w.work(call)):
        if w.fits(call):
            wrong[w.name] = found(w.name, w.work(call), w.output(call).to(call.query.dtype))
    for h in HONEST:
        try:
            output = h.output(call)
        except NotOffered:
            continue
        precision = f"{h.precision}{dtype}" if h.precision and dtype != "float32" else None
        honest[h.name] = found(h.name, call.work, output, precision, right=True)
    return Setting(title, wrong, honest)


def page(harnesses: Iterable[Harness], say: Callable[[str], None]) -> str:
    """Return the whole page; ``say`` is called with the name of each setting as it starts."""
    settings: dict[str, list[Setting]] = {}
    for harness in harnesses:
        for title, make in harness.settings.items():
            say(f"{harness.name}: {title}")
            settings.setdefault(harness.name, []).append(tried(harness, title, make()))
    lines = [HEAD.format(torch=torch.__version__.partition("+")[0], numpy=version("numpy")), CHEAPEST]
    lines += head("harness", "inputs", "wrong attention", "operations", "`judge`")
    lines += [row(name, s.title, *cheapest(s.cheapest)) for name, of in settings.items() for s in of]
    taken = [(n, s.title, f) for n, of in settings.items() for s in of for f in s.wrong.values() if f.taken]
    if taken:
        lines += ["", TAKEN, *head("harness", "inputs", "wrong attention", "error over budget", "`cannot_see`")]
        lines += [row(name, title, f.name, f.factor, "; ".join(f.hidden)) for name, title, f in taken]
    lines += ["", "## All of them\n", LEGEND]
    for name, of in settings.items():
        lines += ["", f"### {name}\n"]
        lines += matrix("wrong", [w.name for w in WRONG], of, [s.wrong for s in of], "—")
        lines += ["", *matrix("honest", [h.name for h in HONEST], of, [s.honest for s in of], "not offered")]
    return "\n".join(lines) + "\n"


def cheapest(found: Found | None) -> tuple[str, str, str]:
    """Cells for the cheapest accepted attention."""
    if found is None:
        return "none of them", "", ""
    return found.name, share(found.work), f"{'takes it' if found.taken else 'convicts'}, {found.factor}"


def matrix(
    title: str, names: Sequence[str], settings: Sequence[Setting], found: Sequence[Mapping[str, Found]], other: str
) -> list[str]:
    """Lines of a table of verdicts by name and setting."""
    cells = ([f[name].cell if name in f else other for f in found] for name in names)
    return [
        *head(title, *(s.title for s in settings)),
        *(row(name, *c) for name, c in zip(names, cells, strict=True) if set(c) != {"—"}),
    ]


def share(work: float) -> str:
    """Text of a share of the operations: "none", "all" from 99 % on, else per cent."""
    if not work:
        return "none"
    return "all" if work >= 0.99 else f"{100 * work:.2g} %"


def row(*cells: str) -> str:
    """Row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    """Header lines of a Markdown table."""
    return [row(*cells), f"|{'---|' * len(cells)}"]
