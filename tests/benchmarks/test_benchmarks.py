"""The benchmarks: turns, ratios, growth, who is wrong or absent, documents, floors, bad arguments."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import ceilings, floors, table
from benchmarks.case import OURS, Case, Subject, forward
from benchmarks.measuring import measure
from benchmarks.memory import peak_on_cpu
from benchmarks.results import FILE, Measurement, Run, best_of_others, ratio, read
from benchmarks.suites import SUITES, Settings
from benchmarks.timing import interleaved, slope

ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )


def case(*subjects: Subject) -> Case:
    x = torch.arange(8.0)
    return Case(
        "toy", "double", "forward", {"n": 8}, 8, 8.0, "terms", "tanh", subjects,
        lambda: 2 * x.double(), lambda out: out, baseline="right",
    )  # fmt: skip


def doubled(factor: float) -> Subject:
    x = torch.arange(8.0)
    return Subject("right" if factor == 2 else "wrong", lambda: forward(lambda y: factor * y, (x,)))


def measurement(subject: str, seconds: float | None, **more: object) -> Measurement:
    made = Measurement(
        "additive", "additive attention", "forward", {"n": 512}, 512, 1, subject, "eager", 1e6, "terms", "tanh",
        seconds=seconds, quartiles=None if seconds is None else (seconds, seconds), rounds=5,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def run(*measurements: Measurement) -> Run:
    machine = {"device": "a machine", "cores": 4, "instructions": "AVX", "system": "s", "python": "3", "versions": {},
               "time": "now"}  # fmt: skip
    return Run(machine, "cpu", {"1": dict.fromkeys(ceilings.RATES, 1e9)}, measurements)


def test_subjects_take_turns() -> None:
    order: list[str] = []

    def call(name: str) -> None:
        order.append(name)
        time.sleep(0.005)

    calls = {name: partial(call, name) for name in "abc"}
    times = interleaved(calls, dict.fromkeys("abc", 0.5), rounds=4, seconds=60)
    turns = order[-12:]  # one call for each sample
    assert all(sorted(turns[i : i + 3]) == list("abc") for i in range(0, 12, 3))
    assert len({tuple(turns[i : i + 3]) for i in range(0, 12, 3)}) > 1
    assert all(len(t.samples) == 4 and t.first == 0.5 for t in times.values())
    low, high = times["a"].quartiles
    assert low <= times["a"].median <= high


def test_growth_is_an_exponent() -> None:
    assert slope([64, 128, 256], [3 * 64**2, 3 * 128**2, 3 * 256**2]) == pytest.approx(2)


def test_who_is_wrong_is_not_timed_and_who_is_absent_is_named() -> None:
    absent = Subject("absent", lambda: forward(lambda x: x, ()), "it is not installed")
    failing = Subject("failing", lambda: forward(torch.linalg.inv, (torch.zeros(2, 2),)))
    found = measure(
        case(doubled(2), doubled(2.001), absent, failing), Settings(), rounds=3, seconds=1, memory=False
    )  # fmt: skip
    by = {m.subject: m for m in found}
    assert by["right"].seconds is not None
    assert by["wrong"].seconds is None
    assert by["wrong"].why_not.startswith("wrong: error 5.0e-04, allowed")
    assert by["absent"].why_not == "absent: it is not installed"
    assert by["failing"].why_not.startswith("failed: ")


def test_ratios_are_of_medians_in_one_group() -> None:
    group = [measurement("eager", 1.0), measurement("torch.compile", 0.1), measurement(OURS, 0.02)]
    assert ratio(group, OURS, "eager") == pytest.approx(50)
    best = best_of_others(group, OURS)
    assert best is not None
    assert best.subject == "torch.compile"
    assert ratio([measurement("eager", None)], OURS, "eager") is None


def test_documents_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = run(measurement("eager", 1.0), measurement("keras", None, why_not="absent: keras is not installed"))
    written.written(tmp_path / FILE)
    assert read(tmp_path / FILE) == written
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(ValueError, match="expected results with schema"):
        read(tmp_path / FILE)


def test_cases_measured_again_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    before = run(measurement("eager", 1.0, size=512), measurement("eager", 4.0, size=1024, sizes={"n": 1024}))
    both = run(measurement("eager", 2.0, size=512)).after(before)
    assert [(m.size, m.seconds) for m in both.measurements] == [(512, 2.0), (1024, 4.0)]
    with pytest.raises(ValueError, match="another machine"):
        replace(before, machine={**before.machine, "device": "another"}).after(before)
    before.written(tmp_path / FILE)
    done = command("--quick", "--suite", "scorers", "--output", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: --output: expected an empty folder or results of this machine; ")


def test_the_page_names_machine_ratios_and_who_is_absent() -> None:
    page = table.markdown(run(measurement("eager", 1.0), measurement(OURS, 0.01),
                              measurement("keras", None, why_not="absent: keras is not installed")))  # fmt: skip
    assert "a machine" in page
    assert "| attnspec | 10 ms | 100 |" in page
    assert "absent: keras is not installed" in page


def test_floors_are_missed_by_name() -> None:
    assert floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.01))) == []
    (line,) = floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.05)))
    assert line == (
        "additive: additive attention, forward, n=512, 1 threads: forward, times eager: expected at least 50, got 20"
    )
    grown = [measurement(OURS, s, size=n, sizes={"n": n}) for n, s in ((512, 1.0), (1024, 4.0), (2048, 32.0))]
    assert any("grows as n^2.5" in line for line in floors.missed(run(*grown)))


def test_every_suite_has_cases_that_agree_with_their_formula() -> None:
    for name, cases in SUITES.items():
        some: Sequence[Case] = list(cases(Settings(sizes=(16,))))
        assert some, name
        assert len({c.key for c in some}) == len(some)
        for one in some:
            for subject in one.subjects:
                if subject.absent or subject.name == "torch.compile":
                    continue
                out: Tensor = subject.make()()[0]
                error = (one.part(out.detach()).double() - one.exact().detach()).abs().max()
                assert float(error) < 1e-4, (one.key, subject.name)


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    (key,) = [c.key for c in SUITES["additive"](Settings(sizes=(256,))) if c.mode == "forward"]
    order = {"sizes": [256], "quick": True}
    eager, ours = (peak_on_cpu("additive", key, name, 1, order) for name in ("eager", OURS))
    if eager == "needs Linux":
        pytest.skip("peak memory is read from /proc")
    assert isinstance(eager, int)
    assert isinstance(ours, int)
    assert eager > 4 * 256 * 256 * 64 * 4 > 4 * ours


def test_a_run_from_the_command_line(tmp_path: Path) -> None:
    done = command("--quick", "--suite", "scorers", "--sizes", "16", "--threads", "1", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "gaussian" in done.stdout
    assert json.loads((tmp_path / FILE).read_text())["measurements"]
    assert "## scorers" in (tmp_path / "README.md").read_text()
    again = command("report", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert "gaussian" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "no"], "benchmarks: --suite: expected one of additive, step, sdpa, multihead, scorers; got 'no'"),
        (["--sizes", "big"], "benchmarks: --sizes: expected positive integers separated by commas; got 'big'"),
        (["--device", "tpu"], "benchmarks: --device: expected cpu or cuda; got 'tpu'"),
        (["report", "nowhere"], "benchmarks: nowhere: expected a folder with results.json; "),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_line(arguments: list[str], message: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
