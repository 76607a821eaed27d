"""The benchmarks: interleaving, wrong and absent subjects, progress, runs from the command line, bad arguments."""

import io
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from rich.console import Console

from benchmarks import ceilings, exact, page
from benchmarks.case import OURS, Case, Subject, forward, forward_backward
from benchmarks.cli import main
from benchmarks.machine import usable_cores
from benchmarks.measuring import check_subjects, measure
from benchmarks.memory import peak_on_cpu
from benchmarks.progress import CaseProgress
from benchmarks.records import FILE, read, write
from benchmarks.suites import SUITES, Settings, keras_layers
from benchmarks.timing import interleaved

from .samples import case, doubled, measurement, run

SLOW = ("torch.compile", "flex_attention")
"""Subjects that compile, which takes seconds."""


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_subjects_are_interleaved() -> None:
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


def test_calls_alone_run_with_one_thread() -> None:
    torch.set_num_threads(3)
    seen: dict[str, set[int]] = {"both": set(), "one": set()}
    calls = {name: partial(lambda name: seen[name].add(torch.get_num_threads()), name) for name in seen}
    interleaved(calls, dict.fromkeys(seen, 0.0), rounds=3, seconds=60, alone=("one",))
    assert seen == {"both": {3}, "one": {1}}
    assert torch.get_num_threads() == 3


@pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite is not installed")
def test_the_gain_of_threads_is_measured_in_the_rounds_of_a_case() -> None:
    gaining = replace(case(replace(doubled(2), name=OURS)), gains=True)
    torch.set_num_threads(2)
    (measured,) = measure(gaining, Settings(), rounds=3, seconds=1, memory=False)
    assert measured.gain is not None
    assert measured.gain > 0
    torch.set_num_threads(1)
    (measured,) = measure(gaining, Settings(), rounds=3, seconds=1, memory=False)
    assert measured.gain is None


def test_wrong_subjects_are_not_timed_and_absent_ones_are_named() -> None:
    absent = Subject("absent", lambda: forward(lambda x: x, ()), "it is not installed")
    failing = Subject("failing", lambda: forward(torch.linalg.inv, (torch.zeros(2, 2),)))
    measurements = measure(
        case(doubled(2), doubled(2.001), absent, failing), Settings(), rounds=3, seconds=1, memory=False
    )  # fmt: skip
    by_subject = {m.subject: m for m in measurements}
    assert by_subject["right"].seconds is not None
    assert by_subject["wrong"].seconds is None
    assert by_subject["wrong"].not_timed.startswith("wrong: output: error 5.0e-04, allowed")
    assert by_subject["absent"].not_timed == "absent: it is not installed"
    assert by_subject["failing"].not_timed.startswith("failed: _LinAlgError: linalg.inv")


@pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite is not installed")
def test_the_ceiling_of_a_case_is_measured_in_its_rounds() -> None:
    limited = replace(case(doubled(2)), ceiling="multiply-adds")
    (with_ceiling,) = measure(limited, Settings(), rounds=3, seconds=1, memory=False)
    assert with_ceiling.limit is not None
    assert with_ceiling.limit > 1e8
    (without_ceiling,) = measure(case(doubled(2)), Settings(), rounds=3, seconds=1, memory=False)
    assert without_ceiling.limit is None


def test_a_wrong_gradient_is_caught_even_in_the_baseline() -> None:
    x = torch.arange(1.0, 9.0)

    def doubled_but_for_the_gradient(y: torch.Tensor) -> torch.Tensor:
        return y + y.detach()

    subject = Subject("right", lambda: forward_backward(doubled_but_for_the_gradient, (x,)))
    signs = torch.tensor([1.0, -1.0] * 4)
    toy = replace(case(subject), formula=lambda dtype: (2 * x.to(dtype), 2 * signs.to(dtype)))
    assert check_subjects(toy, "cpu").not_timed["right"].startswith("wrong: gradient 1: error 5.0e-01, allowed")


def test_only_gradients_summed_over_the_batch_have_the_error_of_long_sums() -> None:
    toy = replace(case(doubled(2)), sizes={"B": 4, "n": 8, "m": 16}, shared=2)
    assert toy.summands(4) == [1, 1, 512, 512]
    assert toy.summands(1) == [1]


def test_a_subject_that_refuses_a_call_is_absent_with_its_reason() -> None:
    (causal_case,) = [c for c in SUITES["sdpa"](Settings(sizes=(16,))) if c.key.startswith("causal, forward,")]
    refused = replace(causal_case, subjects=[s for s in causal_case.subjects if s.name in ("F.sdpa", "cudnn")])
    assert check_subjects(refused, "cpu").not_timed["cudnn"].startswith("absent: No ")


def test_keras_is_named_where_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_layers, "installed", lambda package: None)
    assert keras_layers.absent() == "keras is not installed"
    for suite in ("additive", "step", "multihead", "scorers"):
        first_case = next(iter(SUITES[suite](Settings(sizes=(16,)))))
        assert {s.name: s.absent for s in first_case.subjects}["keras"] == "keras is not installed", suite
    monkeypatch.setattr(keras_layers, "installed", lambda package: "3")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert keras_layers.absent() == "KERAS_BACKEND is jax"


def test_cases_measured_again_replace_earlier_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run(measurement("eager", 1.0, size=512), measurement("eager", 4.0, size=1024, sizes={"n": 1024}))
    both = run(measurement("eager", 2.0, size=512)).merged_with(before)
    assert [(m.size, m.seconds) for m in both.measurements] == [(512, 2.0), (1024, 4.0)]
    with pytest.raises(ValueError, match="another machine"):
        replace(before, machine={**before.machine, "device": "another"}).merged_with(before)
    write(before, tmp_path)
    assert main(["--quick", "--suite", "scorers", "--output", str(tmp_path)]) == 2
    complaint = "benchmarks: --output: expected an empty folder or results of this machine; "
    assert capsys.readouterr().err.startswith(complaint)


def progress_of(*, terminal: bool) -> tuple[str, CaseProgress]:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    present = doubled(2)
    absent = Subject("missing", present.make, "it is not installed")
    with console.capture() as capture, CaseProgress(console) as progress:
        progress.expect(40)
        for _ in range(3):
            progress.case("toy")
            measure(case(present, absent), Settings(), rounds=3, seconds=1, memory=False, step=progress.step)
            progress.progress.refresh()
    return capture.get(), progress


def test_cases_are_counted_and_absent_subjects_are_not_shown() -> None:
    text, progress = progress_of(terminal=False)
    assert text == "[1/40] toy\n[2/40] toy\n[3/40] toy\n"
    assert (progress.started, progress.total) == (3, 40)
    text, _ = progress_of(terminal=True)
    assert "2/40" in text
    assert "timing 1 in interleaved rounds · toy" in text
    assert "missing" not in text


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_agrees_with_its_formula(suite: str) -> None:
    cases = list(SUITES[suite](Settings(sizes=(16,))))
    assert len({c.key for c in cases}) == len(cases)
    for suite_case in cases:
        timed = [s for s in suite_case.subjects if s.name not in SLOW and not s.absent]
        checked = check_subjects(replace(suite_case, subjects=timed), "cpu")
        assert {OURS, suite_case.baseline} <= set(checked.calls), (suite_case.key, checked.not_timed)
        assert not [why for why in checked.not_timed.values() if not why.startswith("absent")], suite_case.key


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
        for suite_case in SUITES["scorers"](settings):
            yield replace(suite_case, subjects=[s for s in suite_case.subjects if s.name not in SLOW])

    monkeypatch.setattr("benchmarks.cli.SUITES", {"scorers": quick})
    order = ["--quick", "--suite", "scorers", "--sizes", "16", "--threads", "1", "--output", str(tmp_path)]
    assert main(order) == 0
    assert "gaussian" in capsys.readouterr().out
    assert read(tmp_path).measurements
    text = (tmp_path / "README.md").read_text()
    assert "## scorers" in text
    (tmp_path / "README.md").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert "gaussian" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == text


def interrupted(settings: Settings) -> Iterator[Case]:
    """Two cases of which the second, when its turn comes, is interrupted as with Ctrl-C."""

    def ctrl_c() -> NoReturn:
        raise KeyboardInterrupt

    yield case(doubled(2))
    yield replace(case(Subject("right", ctrl_c)), sizes={"n": 9}, size=9)


def test_an_interrupted_run_leaves_page_picture_and_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.cli.SUITES", {"toy": interrupted})
    monkeypatch.setattr(ceilings, "measure", lambda device, quick: dict.fromkeys(ceilings.RATES, 1e9))
    order = ["--quick", "--suite", "toy", "--threads", "1"]
    assert main([*order, "--output", str(tmp_path)]) == 130
    output = capsys.readouterr()
    assert "double, forward, n=8, 1 thread" in output.out
    last = output.err.splitlines()[-1]
    assert last.startswith(f"benchmarks: interrupted in case 2 of 2; {tmp_path} keeps the cases before it (python -m ")
    assert [m.size for m in read(tmp_path).measurements] == [8]
    assert "load_after" in read(tmp_path).machine
    assert "## toy" in (tmp_path / page.PAGE).read_text()
    assert main(order) == 130
    assert capsys.readouterr().err.endswith("the cases before it are kept only with --output FOLDER\n")
    before = (tmp_path / FILE).read_text()
    monkeypatch.setattr(ceilings, "measure", interrupting)
    assert main([*order, "--output", str(tmp_path)]) == 130
    assert "interrupted; no case was measured" in capsys.readouterr().err
    assert (tmp_path / FILE).read_text() == before


def test_a_part_of_a_name_chooses_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.cli.SUITES", {"toy": interrupted})
    monkeypatch.setattr(ceilings, "measure", lambda device, quick: dict.fromkeys(ceilings.RATES, 1e9))
    order = ["--quick", "--suite", "toy", "--threads", "1", "--output", str(tmp_path)]
    assert main([*order, "--case", "n=8"]) == 0
    assert [m.size for m in read(tmp_path).measurements] == [8]
    capsys.readouterr()
    assert main([*order, "--case", "n=7"]) == 2
    names = "the chosen suites and sizes have 2 others, from 'double, forward, n=8' to 'double, forward, n=9'"
    expected = f"--case: expected a part of the name of a case; got 'n=7', and {names}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_an_interrupted_run_is_completed_by_measuring_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda device, quick: dict.fromkeys(ceilings.RATES, 1e9))
    order = ["--quick", "--suite", "toy", "--threads", "1", "--output", str(tmp_path)]
    monkeypatch.setattr("benchmarks.cli.SUITES", {"toy": interrupted})
    assert main(order) == 130
    first = read(tmp_path).measurements
    missing_case = replace(case(doubled(2)), sizes={"n": 9}, size=9)
    monkeypatch.setattr("benchmarks.cli.SUITES", {"toy": lambda settings: iter([missing_case])})
    assert main(order) == 0
    measurements = read(tmp_path).measurements
    assert [m.size for m in measurements] == [8, 9]
    assert measurements[:1] == first
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert [text.count(f"| {n} |") for n in (8, 9)] == [1, 1]
    capsys.readouterr()


def interrupting(device: str, quick: bool) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "9999"], f"--threads: expected at most {usable_cores()}, the cores that this process may use; "),
        (
            ["--suite", "no"],
            "--suite: expected one of additive, step, sdpa, groups, multihead, layers, recurrent, decoders, vision, "
            "scorers, language_models, sharded, never_slower; got 'no'",
        ),
        (["--sizes", ","], "--sizes: expected positive integers separated by commas; got ','"),
        (["--sizes", "big"], "--sizes: expected positive integers separated by commas; got 'big'"),
        (["--device", "tpu"], "--device: expected cpu or cuda; got 'tpu'"),
        (["--no-such-option"], "No such option: --no-such-option"),
        (["--output", __file__], f"--output: expected a folder that can be written; got {__file__}, where a file is"),
        (["report"], "Missing argument 'folder'"),
        (["report", "nowhere"], "nowhere: expected a folder with results.jsonl; there is no such folder"),
    ],
)  # fmt: skip
def test_bad_arguments_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"benchmarks: {message}")
    assert complaint.count("\n") == 1


def test_errors_of_a_result_that_is_zero_are_relative_to_the_others() -> None:
    output, gradient = torch.tensor([4.0, -8.0]), torch.zeros(2)
    assert exact.errors([output, gradient + 2.0**-20], [output, gradient]) == [0, 2.0**-23]
    assert exact.errors([output + 1, gradient], [output, gradient]) == [1 / 8, 0]
    assert exact.errors([output * torch.nan, gradient + 1], [output * 0, gradient]) == [float("inf"), 1.0]
