"""Generator of ``table.md``: wrong and correct attentions, judged by each harness and by ``judge``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

import torch
from torch import Tensor

from attnspec.conformance.harness.verdict import Verdict
from examples.harnesses import (
    backendbench,
    flash_attention,
    flashinfer_bench,
    gpu_mode,
    hugging_face,
    kernelbench,
    sglang,
    torchtitan,
)
from examples.harnesses.harness import Call, Harness
from examples.harnesses.honest import HONEST, NotOffered
from examples.harnesses.wrong import WRONG


class HarnessName(StrEnum):
    """Names of the harnesses."""

    KERNELBENCH = "kernelbench"
    FLASHINFER_BENCH = "flashinfer-bench"
    GPU_MODE = "gpu-mode"
    HUGGING_FACE = "hugging-face"
    FLASH_ATTENTION = "flash-attention"
    TORCHTITAN = "torchtitan"
    SGLANG = "sglang"
    BACKENDBENCH = "backendbench"


HARNESSES = {
    HarnessName.KERNELBENCH: kernelbench.HARNESS,
    HarnessName.FLASHINFER_BENCH: flashinfer_bench.HARNESS,
    HarnessName.GPU_MODE: gpu_mode.HARNESS,
    HarnessName.HUGGING_FACE: hugging_face.HARNESS,
    HarnessName.FLASH_ATTENTION: flash_attention.HARNESS,
    HarnessName.TORCHTITAN: torchtitan.HARNESS,
    HarnessName.SGLANG: sglang.HARNESS,
    HarnessName.BACKENDBENCH: backendbench.HARNESS,
}

HEAD = """# What the rules accept

Made by `python -m examples harnesses --out examples/harnesses/table.md`, with PyTorch {torch}, NumPy {numpy}, on the
CPU. [README.md](README.md) says where the rules come from and what is tried.
"""
CHEAPEST = """## The cheapest wrong attention that a rule accepts

Operations are a share of those of attention. The last column has the verdict of `judge` and the largest error over its
budget.
"""
ACCEPTED = """## Wrong attentions that `judge` accepts

An error smaller than all roundings together does not show in one result. The last column is `verdict.cannot_see`, the
mistakes that these inputs cannot show: `suggest_inputs` gives inputs that do.
"""
LEGEND = """Each cell has the verdict of the rule, and the largest error over its budget. Above 1, `judge` convicts;
× means that it convicts although no error exceeds its budget."""


@dataclass(frozen=True)
class Verdicts:
    """Verdicts of a rule and of ``judge`` on an output.

    ``work``: operations of the output, as a share of those of attention. ``ratio_text``: largest error over its
    budget, as text. ``hidden``: mistakes that the inputs cannot show.
    """

    name: str
    work: float
    rule_accepts: bool
    judge_accepts: bool
    ratio_text: str
    hidden: tuple[str, ...] = ()

    @property
    def cell(self) -> str:
        """Cell with the rule's verdict and the error ratio."""
        return f"{'accepted' if self.rule_accepts else 'rejected'}, {self.ratio_text}"


def ratio_text(verdict: Verdict) -> str:
    """Return the largest error over its budget; × if ``judge`` convicts within the budgets."""
    if verdict.worst is None and not verdict:
        return "×"
    ratio = verdict.ratio if verdict.worst is None else verdict.worst.ratio
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}" if ratio < 1e6 else "∞"


@dataclass(frozen=True)
class Setting:
    """Verdicts on one input of a harness: wrong attentions, cheapest first, and honest kernels."""

    title: str
    wrong: Mapping[str, Verdicts]
    honest: Mapping[str, Verdicts]

    @property
    def cheapest(self) -> Verdicts | None:
        """Cheapest wrong attention that the rule accepts; None if it accepts none."""
        return next((verdicts for verdicts in self.wrong.values() if verdicts.rule_accepts), None)


def judge_setting(harness: Harness, title: str, call: Call) -> Setting:
    """Try every wrong attention that applies to these inputs, and every available honest kernel."""
    reference = harness.reference(call)

    def verdicts_on(
        name: str, work: int, output: Tensor, precision: str | None = None, *, right: bool = False
    ) -> Verdicts:
        verdict = harness.judged(output, call, precision)
        hidden = () if right else verdict.cannot_see
        accepts = harness.accepts(output, reference)
        return Verdicts(name, work / call.work, accepts, bool(verdict), ratio_text(verdict), hidden)

    dtype = str(call.query.dtype).removeprefix("torch.")
    wrong, honest = {}, {}
    for w in sorted(WRONG, key=lambda w: w.work(call)):
        if w.fits(call):
            wrong[w.name] = verdicts_on(w.name, w.work(call), w.output(call).to(call.query.dtype))
    for h in HONEST:
        try:
            output = h.output(call)
        except NotOffered:
            continue
        precision = f"{h.precision_prefix}{dtype}" if h.precision_prefix and dtype != "float32" else None
        honest[h.name] = verdicts_on(h.name, call.work, output, precision, right=True)
    return Setting(title, wrong, honest)


def page(harnesses: Iterable[Harness], say: Callable[[str], None]) -> str:
    """Return the whole page; ``say`` gets the name of each setting as it starts."""
    settings: dict[str, list[Setting]] = {}
    for harness in harnesses:
        for title, make in harness.settings.items():
            say(f"{harness.name}: {title}")
            settings.setdefault(harness.name, []).append(judge_setting(harness, title, make()))
    lines = [HEAD.format(torch=torch.__version__.partition("+")[0], numpy=version("numpy")), CHEAPEST]
    lines += head("harness", "inputs", "wrong attention", "operations", "`judge`")
    lines += [row(name, s.title, *cheapest(s.cheapest)) for name, group in settings.items() for s in group]
    accepted = [(n, s.title, v) for n, g in settings.items() for s in g for v in s.wrong.values() if v.judge_accepts]
    if accepted:
        lines += ["", ACCEPTED, *head("harness", "inputs", "wrong attention", "error over budget", "`cannot_see`")]
        lines += [row(name, title, v.name, v.ratio_text, "; ".join(v.hidden)) for name, title, v in accepted]
    lines += ["", "## All of them\n", LEGEND]
    for name, group in settings.items():
        lines += ["", f"### {name}\n"]
        lines += matrix("wrong", [w.name for w in WRONG], group, [s.wrong for s in group], "—")
        lines += ["", *matrix("honest", [h.name for h in HONEST], group, [s.honest for s in group], "not offered")]
    return "\n".join(lines) + "\n"


def cheapest(verdicts: Verdicts | None) -> tuple[str, str, str]:
    """Return the cells for the cheapest attention that the rule accepts."""
    if verdicts is None:
        return "none of them", "", ""
    judged = "accepts it" if verdicts.judge_accepts else "convicts"
    return verdicts.name, share(verdicts.work), f"{judged}, {verdicts.ratio_text}"


def matrix(
    title: str, names: Sequence[str], settings: Sequence[Setting], columns: Sequence[Mapping[str, Verdicts]], blank: str
) -> list[str]:
    """Return the lines of a table of verdicts; ``blank`` stands for an attention that was not tried.

    Rows of wrong attentions that fit no setting are omitted.
    """
    cells = ([column[name].cell if name in column else blank for column in columns] for name in names)
    return [
        *head(title, *(s.title for s in settings)),
        *(row(name, *c) for name, c in zip(names, cells, strict=True) if set(c) != {"—"}),
    ]


def share(work: float) -> str:
    """Return a share as text: "none", "all" from 99 % on, or per cent."""
    if not work:
        return "none"
    return "all" if work >= 0.99 else f"{100 * work:.2g} %"


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    """Return the header lines of a Markdown table."""
    return [row(*cells), f"|{'---|' * len(cells)}"]
