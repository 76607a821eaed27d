"""The benchmarks: turns, ratios, growth, who is wrong or absent, documents, floors, bad arguments."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import ceilings, floors, table
from benchmarks.case import OURS, Case, Subject, differentiated, forward
from benchmarks.cli import main
from benchmarks.growth import growths, slope
from benchmarks.measuring import examine, measure
from benchmarks.memory import peak_on_cpu
from benchmarks.results import FILE, Measurement, Run, best_of_others, ratio, read
from benchmarks.suites import SUITES, Settings, keras_layers
from benchmarks.timing import interleaved

SLOW = ("torch.compile", "flex_attention")
"""Subjects that compile, which takes seconds."""


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def case(*subjects: Subject) -> Case:
    x = torch.arange(8.0)
    return Case(
        "toy", "double", "forward", {"n": 8}, 8, 8.0, "terms", "tanh", subjects,
        lambda dtype: (2 * x.to(dtype),), lambda found: found, baseline="right",
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
    points = [measurement(OURS, n**3.0, size=n, sizes={"n": n}, work=n**2.0) for n in (64, 512, 1024)]
    (growth,) = growths(run(*points, measurement("eager", 1.0)))
    assert (growth.subject, growth.sizes) == (OURS, (512, 1024))
    assert growth.exponent == pytest.approx(1.5)


def test_who_is_wrong_is_not_timed_and_who_is_absent_is_named() -> None:
    absent = Subject("absent", lambda: forward(lambda x: x, ()), "it is not installed")
    failing = Subject("failing", lambda: forward(torch.linalg.inv, (torch.zeros(2, 2),)))
    found = measure(
        case(doubled(2), doubled(2.001), absent, failing), Settings(), rounds=3, seconds=1, memory=False
    )  # fmt: skip
    by = {m.subject: m for m in found}
    assert by["right"].seconds is not None
    assert by["wrong"].seconds is None
    assert by["wrong"].why_not.startswith("wrong: output: error 5.0e-04, allowed")
    assert by["absent"].why_not == "absent: it is not installed"
    assert by["failing"].why_not.startswith("failed: ")


def test_who_is_wrong_in_a_gradient_is_caught_even_if_it_is_the_baseline() -> None:
    x = torch.arange(1.0, 9.0)

    def doubled_but_for_the_gradient(y: torch.Tensor) -> torch.Tensor:
        return y + y.detach()

    subject = Subject("right", lambda: differentiated(doubled_but_for_the_gradient, (x,)))
    signs = torch.tensor([1.0, -1.0] * 4)
    one = replace(case(subject), formula=lambda dtype: (2 * x.to(dtype), 2 * signs.to(dtype)))
    assert examine(one, "cpu").why_not["right"].startswith("wrong: gradient 1: error 5.0e-01, allowed")


def test_only_gradients_summed_over_the_batch_may_err_as_long_sums_do() -> None:
    one = replace(case(doubled(2)), sizes={"B": 4, "n": 8, "m": 16}, shared=2)
    assert one.summands(4) == [1, 1, 512, 512]
    assert one.summands(1) == [1]


def test_who_refuses_a_call_is_absent_with_its_reason() -> None:
    (one,) = [c for c in SUITES["sdpa"](Settings(sizes=(16,))) if c.key.startswith("causal, forward,")]
    refused = replace(one, subjects=[s for s in one.subjects if s.name in ("F.sdpa", "cudnn")])
    assert examine(refused, "cpu").why_not["cudnn"].startswith("absent: No ")


def test_keras_is_named_where_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_layers, "installed", lambda package: None)
    assert keras_layers.absent() == "keras is not installed"
    for suite in ("additive", "step", "multihead", "scorers"):
        one = next(iter(SUITES[suite](Settings(sizes=(16,)))))
        assert {s.name: s.absent for s in one.subjects}["keras"] == "keras is not installed", suite
    monkeypatch.setattr(keras_layers, "installed", lambda package: "3")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert keras_layers.absent() == "KERAS_BACKEND is jax"


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
    (tmp_path / FILE).write_text('{"schema": "attnspec-benchmarks/1"}')
    with pytest.raises(ValueError, match="KeyError: 'measurements'"):
        read(tmp_path / FILE)


def test_cases_measured_again_take_the_place_of_earlier_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(measurement("eager", 1.0, size=512), measurement("eager", 4.0, size=1024, sizes={"n": 1024}))
    both = run(measurement("eager", 2.0, size=512)).after(before)
    assert [(m.size, m.seconds) for m in both.measurements] == [(512, 2.0), (1024, 4.0)]
    with pytest.raises(ValueError, match="another machine"):
        replace(before, machine={**before.machine, "device": "another"}).after(before)
    before.written(tmp_path / FILE)
    assert main(["--quick", "--suite", "scorers", "--output", str(tmp_path)]) == 2
    complaint = "benchmarks: --output: expected an empty folder or results of this machine; "
    assert capsys.readouterr().err.startswith(complaint)


def test_the_page_names_machine_ratios_and_who_is_absent() -> None:
    page = table.markdown(run(measurement("eager", 1.0), measurement(OURS, 0.01, first=2.0),
                              measurement("keras", None, why_not="absent: keras is not installed")))  # fmt: skip
    assert "a machine" in page
    assert "| attnspec | 10 ms | 2 s | 100 | 100 | 100 Mterms/s | 10% |" in page
    assert "absent: keras is not installed" in page


def test_floors_are_missed_by_name() -> None:
    assert floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.01))) == []
    (line,) = floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.05)))
    assert line == (
        "additive: additive attention, forward, n=512, 1 thread: forward, times eager: expected at least 50, got 20"
    )
    grown = [measurement(OURS, s, size=n, sizes={"n": n}) for n, s in ((512, 1.0), (1024, 4.0), (2048, 32.0))]
    grown = [replace(m, work=float(m.size**2)) for m in grown]
    assert any("grows as (n·m)^1.25" in line for line in floors.missed(run(*grown)))
    failing = measurement(OURS, None, why_not="failed: no")
    assert floors.missed(run(failing)) == [f"{floors.title(failing)}: {OURS} is failed: no"]
    assert "additive: forward, times eager: not everything was measured" in floors.unchecked(run(failing))
    assert "step: step, times eager: no such case in this run" in floors.unchecked(run(failing))


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_agrees_with_its_formula(suite: str) -> None:
    some = list(SUITES[suite](Settings(sizes=(16,))))
    assert len({c.key for c in some}) == len(some)
    for one in some:
        timed = [s for s in one.subjects if s.name not in SLOW and not s.absent]
        found = examine(replace(one, subjects=timed), "cpu")
        assert {OURS, one.baseline} <= set(found.calls), (one.key, found.why_not)
        assert not [why for why in found.why_not.values() if not why.startswith("absent")], one.key


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    (key,) = [c.key for c in SUITES["additive"](Settings(sizes=(256,))) if c.mode == "forward"]
    order = {"sizes": [256]}
    eager, ours = (peak_on_cpu("additive", key, name, 1, order) for name in ("eager", OURS))
    if eager == "needs Linux":
        pytest.skip("peak memory is read from /proc")
    assert isinstance(eager, int)
    assert isinstance(ours, int)
    assert eager > 4 * 256 * 256 * 64 * 4 > 4 * ours


def test_a_run_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(settings: Settings) -> Iterator[Case]:
        for one in SUITES["scorers"](settings):
            yield replace(one, subjects=[s for s in one.subjects if s.name not in SLOW])

    monkeypatch.setattr("benchmarks.cli.SUITES", {"scorers": quick})
    order = ["--quick", "--suite", "scorers", "--sizes", "16", "--threads", "1", "--output", str(tmp_path)]
    assert main(order) == 0
    assert "gaussian" in capsys.readouterr().out
    assert json.loads((tmp_path / FILE).read_text())["measurements"]
    page = (tmp_path / "README.md").read_text()
    assert "## scorers" in page
    (tmp_path / "README.md").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert "gaussian" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "no"], "--suite: expected one of additive, step, sdpa, multihead, scorers; got 'no'"),
        (["--sizes", "big"], "--sizes: expected positive integers separated by commas; got 'big'"),
        (["--device", "tpu"], "--device: expected cpu or cuda; got 'tpu'"),
        (["--no-such-option"], "No such option: --no-such-option"),
        (["--output", __file__], "--output: expected a folder that can be written; "),
        (["report"], "Missing argument 'folder'"),
        (["report", "nowhere"], "nowhere: expected a folder with results.json; "),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"benchmarks: {message}")
    assert complaint.count("\n") == 1
