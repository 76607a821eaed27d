"""The page of kills: which laws kill which mutants, what is missed, and how often honest variants are accused."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnspec.conformance.mutants import MUTANTS, Mutant
from attnspec.conformance.rediscovered.registry import address_of
from attnspec.conformance.reporting.kill_report import LOST
from attnspec.conformance.reporting.markup import literal, table
from attnspec.conformance.variants import VARIANTS
from attnspec.spec.contract.law import LAWS

Data = Mapping[str, Any]
"""What ``kill_trials`` makes, or a JSON file of it."""

REPORT = re.compile(r"(?<![\w/.-])[\w.-]+/[\w.-]+#\d+\b")
"""A report in the form ``owner/repository#number``."""

NUMBER = re.compile(r"\d\.\de-\d+")
"""An error in a cell of the table of sensitivity: on plain inputs, and the largest on any."""

HEAD = """# Kills

What the suite finds, and what it misses. A mutant is a correct backend that is wrong in one way; every one must be
killed, that is, violate a law. An honest variant is a correct backend that rounds in its own way; none may be harmed.
Each law of the operations concerned judges each mutant in `quick` at seed 0, whether others have killed it or not.
Mutants that only laws for which `quick` has no time can kill are judged in `full` instead, and marked with `full`.

Made by `nox -s mutants -- --page` with the laws, inputs, mutants and variants of digest `{digest}`, on a processor
{processor}, with NumPy {numpy} and Hypothesis {hypothesis}. The same is in [{data}]({data}), of which CI recomputes a
twentieth.
"""

MISSES = """## Misses

Mutants that survive at some of {quick} seeds of `quick`, or of {full} seeds of `full`, with the seeds at which they do.
A trial is of the operations concerned, and ends at the first violation. Mutants that are marked with `full` were judged
in it at all {both} seeds.
"""

FALSE_ALARMS = """## False alarms

Every honest variant in `quick` at {seeds} seeds. The rate is what independent checks would allow; some share an input.
The last column is the largest error in units of the budget, of laws that held: near 1 where that is a rigorous bound
and not 8 standard deviations, such as half a unit in the last place of a number that is rounded once.
"""

SMALLEST = """## Smallest convicted errors

The smallest relative errors that `full` convicts, from the best operation on plain inputs to the worst one on any
inputs: of gain, of the scale of the scores and of gain of a gradient as in [sensitivity.md](sensitivity.md). Then the
relative error of one weight, that of the last key in `scaled_dot_product_attention`, whatever the number of keys: the
smallest power of two such that it and all larger ones that were tried are convicted at {full} seeds.
"""

KILLED_BY = """## Which laws kill which mutant

Laws in bold are assigned to the mutant: each of them must kill it alone, at one of three seeds. “Not X, which is
assigned” is one that did not kill it here, at seed 0.
"""

LAWS_KILL = """## What each law kills

Of {total} mutants, how many each law kills, how many only that law kills, and those. {silent}
"""


def page(data: Data, sensitivity: str, name: str) -> str:
    """The whole page, from its data, the text of the page on sensitivity, and the name of the file of data."""
    known = {m: data["mutants"][m] for m in MUTANTS if m in data["mutants"]}
    seeds = data["seeds"]
    return "\n".join(
        [
            HEAD.format(digest=data["digest"], data=name, **data["made_with"]),
            _summary(data, known),
            MISSES.format(**seeds, both=sum(seeds.values())),
            *_misses(known, seeds),
            FALSE_ALARMS.format(seeds=data["variant_seeds"]),
            *_false_alarms(data),
            SMALLEST.format(**seeds),
            _smallest(data["one_weight"], sensitivity),
            LAWS_KILL.format(total=len(known), silent=_silent(known)),
            _laws(known),
            KILLED_BY,
            *_killed_by(known),
        ]
    )


def _killed(entry: Data) -> bool:
    return bool(entry["laws"])


def _summary(data: Data, known: Mapping[str, Data]) -> str:
    """Killed of all, by the module that mutants stand in, and honest variants harmed."""
    groups = Counter(MUTANTS[m].chapter for m in known)
    killed = Counter(MUTANTS[m].chapter for m, entry in known.items() if _killed(entry))
    variants = data["variants"].values()
    harmed = sum(bool(v["harmed"]) for v in variants)
    rows = [(group, f"{killed[group]} of {count}") for group, count in sorted(groups.items())]
    total = f"{sum(killed.values())} of {len(known)} mutants are killed, {harmed} of {len(variants)} variants harmed.\n"
    return f"{total}\n{table(('mutants of', 'killed'), rows)}\n"


def _misses(known: Mapping[str, Data], seeds: Mapping[str, int]) -> Iterator[str]:
    """How many trials miss, by dtype, and the mutants that are missed."""
    rows = []
    for dtype, profile in dict.fromkeys((MUTANTS[m].dtype, MUTANTS[m].profile) for m in known):
        chosen = [e for m, e in known.items() if (MUTANTS[m].dtype, MUTANTS[m].profile) == (dtype, profile)]
        missed = [f"{sum(len(e[p]) for e in chosen)} of {n * len(chosen)}" for p, n in seeds.items()]
        label = dtype if profile == "quick" else f"{dtype}, `{profile}`"
        rows.append((label, str(len(chosen)), *missed))
    yield table(("dtype", "mutants", *(f"misses in `{profile}`" for profile in seeds)), rows) + "\n"
    missed_mutants = [
        (_named(MUTANTS[m]), MUTANTS[m].dtype, *(_numbers(entry[p]) for p in seeds))
        for m, entry in known.items()
        if any(entry[p] for p in seeds)
    ]
    if missed_mutants:
        header = ("mutant", "dtype", *(f"survives in `{profile}` at seeds" for profile in seeds))
        yield table(header, missed_mutants) + "\n"
    else:
        yield "No mutant is missed at any seed.\n"


def _false_alarms(data: Data) -> Iterator[str]:
    """How many checks there were, the bound of the rate, and every variant."""
    variants = data["variants"]
    checks = sum(v["checks"] for v in variants.values())
    harmed = {name: v for name, v in variants.items() if v["harmed"]}
    if harmed:
        yield f"{len(harmed)} variants were harmed in {checks:,} checks: {', '.join(map(literal, harmed))}.\n"
    elif checks:
        yield f"No false alarm in {checks:,} checks: their rate is below {3 / checks:.1e} (95 %).\n"
    rows = [
        (literal(name), VARIANTS[name].statement, f"{v['checks']:,}", _alarms(v), f"{v['largest']:.2f}")
        for name, v in variants.items()
    ]
    yield table(("variant", "what it does", "checks", "false alarms", "largest error"), rows) + "\n"
    for name, reason in data["not_tried"].items():
        yield f"Not tried: {literal(name)}, since {literal(reason)}.\n"


def _alarms(variant: Data) -> str:
    return ", ".join(f"`{law}` at {n} seeds" for law, n in variant["laws"].items()) or "0"


def _smallest(weights: Mapping[str, float | None], sensitivity: str) -> str:
    """Errors of gain, scale and gradient, as the first table of the page on them has them, and of one weight."""
    found: dict[str, list[list[float]]] = {}
    first, *_ = sensitivity.partition("\n## ")
    for line in first.splitlines():
        cells = line.strip("| ").split(" | ")
        if line.startswith("| `"):
            columns = found.setdefault(cells[1], [[], [], []])
            for column, cell in zip(columns, cells[2:], strict=True):
                column += [float(number) for number in NUMBER.findall(cell)]
    rows = []
    for dtype, error in weights.items():
        columns = found.get(dtype, [[], [], []])
        ranges = [f"{min(c):.1e} to {max(c):.1e}" if c else "–" for c in columns]
        rows.append((dtype, *ranges, "none" if error is None else f"{error:.1e}"))
    return table(("dtype", "gain", "scale", "gradient", "one weight"), rows) + "\n"


def _killers(known: Mapping[str, Data]) -> dict[str, list[str]]:
    """The mutants that each law kills."""
    return {law: [m for m, entry in known.items() if law in entry["laws"]] for law in LAWS}


def _alone(known: Mapping[str, Data], killed: Sequence[str]) -> list[str]:
    return [m for m in killed if len(known[m]["laws"]) == 1]


def _silent(known: Mapping[str, Data]) -> str:
    """The laws that kill nothing alone, in a sentence."""
    silent = [law for law, killed in _killers(known).items() if not _alone(known, killed)]
    if not silent:
        return "Every law kills some mutant alone."
    return f"{len(silent)} of {len(LAWS)} laws kill nothing alone: those with 0 in the third column."


def _laws(known: Mapping[str, Data]) -> str:
    """Every law, with how much it kills."""
    rows = []
    for law, killed in _killers(known).items():
        alone = _alone(known, killed)
        rows.append((f"`{law}`", str(len(killed)), str(len(alone)), "; ".join(map(literal, alone))))
    return table(("law", "kills", "alone", "which alone"), rows) + "\n"


def _killed_by(known: Mapping[str, Data]) -> Iterator[str]:
    """Every mutant with what is wrong, where it is known from and the laws that kill it, by module."""
    for group in sorted({MUTANTS[m].chapter for m in known}):
        rows = [
            (_named(m), literal(m.statement), _linked(m.source), _laws_of(m, known[m.name]["laws"]))
            for m in map(MUTANTS.__getitem__, known)
            if m.chapter == group
        ]
        yield f"### {group}\n\n{table(('mutant', 'what is wrong', 'known from', 'killed by'), rows)}\n"


def _named(m: Mutant) -> str:
    """The name of a mutant, with its dtype and profile where they are not the usual ones."""
    unusual = [*([m.dtype] if m.dtype != "float32" else []), *([f"`{m.profile}`"] if m.profile != "quick" else [])]
    return literal(m.name) + (f" ({', '.join(unusual)})" if unusual else "")


def _linked(source: str) -> str:
    """Where a mutant is known from, with links to public reports."""
    return REPORT.sub(lambda found: f"[{found[0]}]({address_of(found[0])})", literal(source))


def _laws_of(m: Mutant, laws: Sequence[str]) -> str:
    """The laws that kill a mutant, those that are assigned to it first."""
    assigned = [f"**{law}**" for law in m.breaks if law in laws]
    others = [law for law in laws if law not in m.breaks]
    idle = [f"not {law}, which is assigned" for law in m.breaks if law not in laws]
    return ", ".join([*assigned, *(law if law != LOST else f"it {LOST}" for law in others), *idle]) or "nothing"


def _numbers(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "–"
