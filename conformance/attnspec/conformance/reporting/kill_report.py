"""The report of a kill matrix: what became of every mutant and honest variant, as an object and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnspec.conformance.mutants import Mutant
from attnspec.conformance.running.trials import LOST, Outcome
from attnspec.conformance.variants import Variant

SCHEMA = "attnspec-mutants/1"


@dataclass(frozen=True)
class Row:
    """What became of one mutant or variant over all seeds."""

    subject: Mutant | Variant
    outcomes: Sequence[Outcome]

    @property
    def assigned(self) -> tuple[str, ...]:
        """The laws that must kill it, if it is a mutant."""
        return self.subject.breaks if isinstance(self.subject, Mutant) else ()

    @property
    def kills(self) -> int:
        """At how many seeds something was wrong."""
        return sum(o.convicts for o in self.outcomes)

    @property
    def survived(self) -> list[int]:
        """The seeds at which nothing was wrong."""
        return [seed for seed, o in enumerate(self.outcomes) if not o.convicts]

    @property
    def powerless(self) -> list[str]:
        """The laws that should kill the mutant, and do not where they are asked alone."""
        found = {law for o in self.outcomes for law in o.powerless}
        return [law for law in self.assigned if law in found]

    @property
    def evaluations(self) -> int:
        """Checks of a law on an example, over all seeds."""
        return sum(o.evaluations for o in self.outcomes)

    @property
    def largest(self) -> float:
        """The largest error ratio of laws that held."""
        return max((o.largest for o in self.outcomes), default=0.0)

    @property
    def laws(self) -> dict[str, int]:
        """The laws that failed, with the number of seeds at which they did, most often first."""
        counts: dict[str, int] = {}
        for o in self.outcomes:
            for law in {f.law for f in o.failures} | ({LOST} if o.lost else set()):
                counts[law] = counts.get(law, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class KillMatrix:
    """What became of all mutants and variants; ``every`` says that mutants were judged by every law.

    ``not_tried`` says of variants that the system cannot try what it lacks.
    """

    profile: str
    seeds: int
    every: bool
    mutants: Sequence[Row]
    variants: Sequence[Row]
    not_tried: Mapping[str, str] = field(default_factory=dict)

    @property
    def killed(self) -> int:
        """How many mutants were killed at every seed."""
        return sum(row.kills == self.seeds for row in self.mutants)

    @property
    def harmed(self) -> int:
        """How many variants were harmed at some seed."""
        return sum(row.kills > 0 for row in self.variants)

    @property
    def exit_status(self) -> int:
        """0 if every mutant was killed at every seed, by each of its laws, and no variant was harmed, else 1."""
        powerless = any(row.powerless for row in self.mutants)
        return 0 if self.killed == len(self.mutants) and not powerless and not self.harmed else 1

    @property
    def only_killer(self) -> dict[str, list[str]]:
        """Per law, the mutants that no other law kills; empty unless mutants were judged by every law."""
        found: dict[str, list[str]] = {}
        for row in self.mutants if self.every else ():
            if len(row.laws) == 1:
                found.setdefault(next(iter(row.laws)), []).append(row.subject.name)
        return dict(sorted(found.items()))

    @property
    def false_alarm_bound(self) -> float | None:
        """The upper bound of the rate of false alarms at 95 %; None where there was one, or nothing was checked."""
        checks = sum(row.evaluations for row in self.variants)
        return 3 / checks if checks and not self.harmed else None

    def as_json(self) -> dict[str, Any]:
        """The matrix as plain JSON."""
        return {
            "schema": SCHEMA,
            "profile": self.profile,
            "seeds": self.seeds,
            "matrix": self.every,
            "mutants": [
                {
                    "name": row.subject.name,
                    "chapter": row.subject.chapter,
                    "statement": row.subject.statement,
                    "source": row.subject.source if isinstance(row.subject, Mutant) else "",
                    "operations": list(row.subject.operations),
                    "assigned": list(row.assigned),
                    "killed": row.kills,
                    "survived_seeds": row.survived,
                    "powerless": row.powerless,
                    "laws": row.laws,
                    "checks": row.evaluations,
                }
                for row in self.mutants
            ],
            "variants": [
                {
                    "name": row.subject.name,
                    "statement": row.subject.statement,
                    "operations": list(row.subject.operations),
                    "checks": row.evaluations,
                    "harmed": row.kills,
                    "laws": row.laws,
                    "largest_error_ratio": row.largest,
                    "failures": [list(f) for o in row.outcomes for f in o.failures],
                }
                for row in self.variants
            ],
            "only_killer": self.only_killer,
            "not_tried": dict(self.not_tried),
            "false_alarm_bound": self.false_alarm_bound,
            "exit_status": self.exit_status,
        }
