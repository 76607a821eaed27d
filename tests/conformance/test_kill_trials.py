"""Making the page of kills: what is tried, in parts, and what the page says of it."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attnspec.conformance.mutants import MUTANTS, Mutant, mutant
from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.one_weight import ONE_WEIGHT, POWERS, one_weight
from attnspec.conformance.reporting import kill_page
from attnspec.conformance.reporting.writing import OutputFile
from attnspec.conformance.running.kept_trials import KeptTrials, digest
from attnspec.conformance.running.kill_page import as_text, make_page, rendered
from attnspec.conformance.running.kill_trials import SCHEMA, Extent, kill_data
from attnspec.conformance.running.trial_run import INCOMPLETE, TrialRun
from attnspec.conformance.running.trials import Outcome, Task, perform
from attnspec.conformance.variants import VARIANTS, Variant
from attnspec.reference import REFERENCE
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.normalization import Softmax
from tests.budgets import assert_within_budgets

SOME = {name: MUTANTS[name] for name in ("base 1000", "exp(−e)")}
HONEST = {name: VARIANTS[name] for name in ("sinusoids in double precision",)}


def run(minutes: float | None = None, kept: KeptTrials | None = None) -> TrialRun:
    return TrialRun(0, Console(file=io.StringIO(), width=300), kept, minutes)


def said(by: TrialRun) -> str:
    assert isinstance(by.console.file, io.StringIO)
    return by.console.file.getvalue()


def extent(**changed: Any) -> Extent:
    small: dict[str, Any] = {"quick": 2, "full": 1, "checks": 100, "mutants": SOME, "variants": HONEST, "weights": ()}
    return Extent(**{**small, **changed})


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return kill_data(extent(), run())


def test_what_became_of_every_trial(data: dict[str, Any]) -> None:
    assert data["schema"] == SCHEMA
    assert data["digest"] == digest()
    assert data["seeds"] == {"quick": 2, "full": 1}
    assert data["mutants"].keys() == SOME.keys()
    for name, entry in data["mutants"].items():
        failures = perform(Task(SOME[name], "quick", 0, every=True)).failures
        assert entry["laws"] == sorted({f.law for f in failures})
        assert set(SOME[name].breaks) <= set(entry["laws"])
    assert data["mutants"]["base 1000"]["quick"] == data["mutants"]["base 1000"]["full"] == []


def test_variants_are_judged_until_there_are_enough_checks(data: dict[str, Any]) -> None:
    ((name, entry),) = data["variants"].items()
    checks = perform(Task(HONEST[name], "quick", 0)).evaluations
    assert data["variant_seeds"] == -(-100 // checks) > 1
    assert entry["checks"] >= 100
    assert entry["harmed"] == 0


def test_a_page_is_made_in_parts(tmp_path: Path) -> None:
    file, parts = OutputFile(tmp_path / "k.md", "--page"), []
    for _ in range(30):
        part = run(0, KeptTrials(tmp_path / "k.trials"))
        status = make_page(file, extent(), part)
        parts.append(said(part))
        if status != INCOMPLETE:
            break
        assert not file.path.exists()
    assert status == 0
    going_on = "judged in 0 minutes: the same command goes on; no page was written"
    assert f"1 of 2 mutants by every law {going_on}" in parts[0]
    assert any(f"of 6 trials of mutants at all seeds {going_on}" in text for text in parts)
    assert f"wrote {file.path} and {tmp_path / 'k.json'}" in parts[-1]
    assert "2 of 2 mutants are killed, 0 of 1 variants harmed" in file.path.read_text(encoding="utf-8")


def test_a_page_of_the_present_suite_is_written_again_without_trials(tmp_path: Path, data: dict[str, Any]) -> None:
    file, beside = OutputFile(tmp_path / "k.md", "--page"), tmp_path / "k.json"
    beside.write_text(as_text(data), encoding="utf-8")
    assert json.loads(beside.read_text(encoding="utf-8")) == data
    assert make_page(file, extent(), run(0)) == 0
    assert file.path.read_text(encoding="utf-8") == rendered(data, file.path)
    for stale in ("not json", "[]", as_text({**data, "digest": "0123"}), as_text({**data, "mutants": {}})):
        beside.write_text(stale, encoding="utf-8")
        assert make_page(file, extent(), run(0)) == INCOMPLETE
    beside.write_text(as_text(data), encoding="utf-8")
    assert make_page(file, extent(checks=10**9), run(0)) == INCOMPLETE


def made(tmp_path: Path, **changed: Any) -> tuple[int, str]:
    file = OutputFile(tmp_path / "k.md", "--page")
    status = make_page(file, extent(**{"mutants": {}, "variants": {}, "quick": 1, **changed}), run())
    return status, file.path.read_text(encoding="utf-8")


@mutant("unharmful", replaces="softmax", operations=(Softmax,), breaks=("operation.oracle",), source="", register=False)
def unharmful(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Nothing is changed."""
    return Formulas.softmax(correct, scores, mask=mask)


def test_a_mutant_that_survives_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kill_page, "MUTANTS", {"unharmful": unharmful})
    status, page = made(tmp_path, mutants={"unharmful": unharmful}, quick=2)
    assert status == 1
    assert "0 of 1 mutants are killed" in page
    assert "| float32 | 1 | 2 of 2 | 1 of 1 |" in page
    assert "| unharmful | float32 | 0, 1 | 0 |" in page
    assert "not operation.oracle, which is assigned" in page


def test_a_variant_that_is_harmed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Variant("wrong", ("softmax",), type("Wrong", (Formulas,), {"exponential": lambda self, x: np.exp2(x)}))
    monkeypatch.setattr(kill_page, "VARIANTS", {"wrong": wrong})
    status, page = made(tmp_path, variants={"wrong": wrong})
    assert status == 1
    assert "1 variants were harmed" in page
    assert "their rate is below" not in page


def test_a_variant_that_cannot_be_tried_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Variant("x", ("softmax",), Formulas, lacking=lambda: "expected a compiler; got none")
    monkeypatch.setattr(kill_page, "VARIANTS", {"x": lacking})
    status, page = made(tmp_path, variants={"x": lacking})
    assert status == 0
    assert "Not tried: x, since expected a compiler; got none." in page


def test_laws_and_mutants_are_counted_both_ways(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "base 1000", "1/√d of two digits in bfloat16"
    monkeypatch.setattr(kill_page, "MUTANTS", {name: MUTANTS[name] for name in (first, second)})
    entries = {
        first: {"laws": ["operation.oracle"], "quick": [], "full": []},
        second: {"laws": ["attention.ensemble-scale", "operation.oracle"], "quick": [1], "full": []},
    }
    page = kill_page.page({**data, "mutants": entries}, "", "k.json")
    assert "| `operation.oracle` | 2 | 1 | base 1000 |" in page
    assert "| `attention.ensemble-scale` | 1 | 0 |  |" in page
    assert f"{len(LAWS) - 1} of {len(LAWS)} laws kill nothing alone: " in page
    assert "| bfloat16 | 1 | 1 of 2 | 0 of 1 |" in page
    assert "**attention.ensemble-scale**, operation.oracle |" in page
    assert MUTANTS[first].statement in page
    assert "| [maxjcohen/transformer#62](https://github.com/maxjcohen/transformer/issues/62) |" in page


def test_mutants_that_full_alone_kills_are_counted_apart(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """They were judged in ``full`` at the seeds of both profiles."""
    beyond = next(name for name, m in MUTANTS.items() if m.profile == "full" and m.dtype == "float32")
    monkeypatch.setattr(kill_page, "MUTANTS", {name: MUTANTS[name] for name in ("base 1000", beyond)})
    entries = {name: {"laws": ["operation.oracle"], "quick": [], "full": []} for name in ("base 1000", beyond)}
    page = kill_page.page({**data, "mutants": entries}, "", "k.json")
    assert "| float32 | 1 | 0 of 2 | 0 of 1 |" in page
    assert "| float32, `full` | 1 | 0 of 2 | 0 of 1 |" in page
    assert f"| {beyond} (`full`) |" in page


def test_smallest_errors_are_those_of_the_other_page(data: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        "| `a` | float32 | 2.5e-07, 4.0e-07 | – | 3.0e-07, 3.0e-07 |",
        "| `b` | float32 | 3.5e-07, 3.6e-07 | – | – |",
    ]
    (tmp_path / "sensitivity.md").write_text("\n".join(rows), encoding="utf-8")
    page = rendered({**data, "one_weight": {"float32": 2.0**-20, "float16": None}}, tmp_path / "k.md")
    assert "| float32 | 2.5e-07 to 4.0e-07 | – | 3.0e-07 to 3.0e-07 | 9.5e-07 |" in page
    assert "| float16 | – | – | – | none |" in page


def test_one_weight_is_wrong_by_what_is_said() -> None:
    wrong = one_weight("float32", 10).backend()
    q, k, v = (np.eye(4, dtype=np.float32) for _ in range(3))
    attention = OPERATIONS["scaled_dot_product_attention"]
    factors = np.where(np.arange(4) == 3, 1 + 2.0**-10, 1.0)
    found = [wrong.call(attention, q, k, v), Library("right").call(attention, q, k, v) * factors.astype(np.float32)]
    assert_within_budgets(found, lambda q, k, v: REFERENCE[attention.name](q, k, v) * factors, q, k, v)
    assert [pickle.loads(pickle.dumps(w)).name for w in ONE_WEIGHT] == [w.name for w in ONE_WEIGHT]


@pytest.mark.parametrize("dtype", POWERS)
def test_the_plainest_errors_of_one_weight_are_convicted(dtype: str) -> None:
    assert perform(Task(one_weight(dtype, POWERS[dtype][0]), "full", 0)).failures


def test_the_smallest_error_has_no_greater_one_that_escapes() -> None:
    weights = [one_weight("float32", power) for power in (1, 2, 3)]
    outcomes = {w.name: Outcome((), 1, 0.0, lost=w.power != 2) for w in weights}

    class Given(TrialRun):
        def outcomes(self, tasks: Any, limit: float, what: str = "trials") -> Any:
            return {task.key: outcomes[task.subject.name] for task in tasks}

    empty: dict[str, Mutant] = {}
    given = extent(mutants=empty, variants={}, weights=weights)
    assert kill_data(given, Given(0, Console()))["one_weight"] == {"float32": 0.5}


@pytest.mark.parametrize(
    ("part", "judges"),
    [
        ("conformance/laws/pooling.py", True),
        ("conformance/inputs/corners.py", True),
        ("conformance/running/trials.py", True),
        ("spec/pooling.py", True),
        ("spec/laws/pooling.py", True),
        ("reference/budget/error_array.py", True),
        ("conformance/reporting/kill_page.py", False),
        ("conformance/cli.py", False),
        ("spec/errata.py", False),
        ("spec/lectures/registry.py", False),
    ],
)
def test_the_digest_is_of_what_judges(part: str, judges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = digest(), Path.read_text

    def changed(path: Path, *args: Any, **kwargs: Any) -> str:
        return read(path, *args, **kwargs) + "#" * path.as_posix().endswith(f"attnspec/{part}")

    package, _, below = part.partition("/")
    (folder,) = __import__(f"attnspec.{package}", fromlist=["x"]).__path__
    assert (Path(folder) / below).is_file()
    monkeypatch.setattr(Path, "read_text", changed)
    assert (digest() != before) == judges
