"""Results of benchmarks: speedups, growth, merging, the page, the table, floors."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from benchmarks import ceilings, comparison, exact, floors, multiply_adds, page, table
from benchmarks.case import OURS
from benchmarks.growth import growths, slope
from benchmarks.results import REASON, Measurement, Run, brief, ceiling_share, fastest_other, speedup
from benchmarks.suites import SUITES

from .samples import measurement, run


def test_a_part_that_is_measured_again_keeps_its_place_among_the_cases() -> None:
    def all_of(*cases: str, sizes: tuple[int, ...] = (64, 512)) -> Run:
        return run(*(measurement("eager", 1.0, case=c, size=n, sizes={"n": n}) for n in sizes for c in cases))

    before = all_of("none", "causal", "padding")
    for again in (all_of("none", "causal"), all_of("causal", sizes=(512,)), all_of("padding", "none")):
        merged = again.merged_with(before)
        assert [(m.case, m.size) for m in merged.measurements] == [(m.case, m.size) for m in before.measurements]


def test_growth_is_an_exponent() -> None:
    # two digits are shown
    assert f"{slope([64, 128, 256], [3 * 64**2, 3 * 128**2, 3 * 256**2]):.2f}" == "2.00"
    points = [measurement(OURS, n**3.0, size=n, sizes={"n": n}, work=n**2.0) for n in (64, 512, 1024)]
    (growth,) = growths(run(*points, measurement("eager", 1.0)))
    assert (growth.subject, growth.sizes) == (OURS, (512, 1024))
    assert f"{growth.exponent:.2f}" == "1.50"


def test_speedups_are_of_medians_in_one_group() -> None:
    group = [measurement("eager", 1.0), measurement("torch.compile", 0.1), measurement(OURS, 0.02)]
    assert speedup(group, OURS, "eager") == 50
    best = fastest_other(group, OURS)
    assert best is not None
    assert best.subject == "torch.compile"
    assert speedup([measurement("eager", None)], OURS, "eager") is None


def test_the_page_names_machine_speedups_and_absent_subjects() -> None:
    text = page.markdown(run(measurement("eager", 1.0), measurement(OURS, 0.01),
                             measurement("keras", None, not_timed="absent: keras is not installed")))  # fmt: skip
    assert "a machine" in text
    assert "| 1 | 1 GFMA/s | 1 Gtanh/s | 1 GB/s | 1 GFLOP/s |" in text
    assert "| additive | forward | 1 | 100 to 100 | 100 | 100 to 100 | 100 |" in text
    assert "| case | n | eager | **attnspec** | × eager | × best other | of ceiling |" in text
    assert "| additive attention, forward, 1 thread | 512 | 1 s | 10 ms | 100 | 100 | 10% |" in text
    assert "\n- keras: `absent: keras is not installed`\n" in text
    assert f"The ceiling is {ceilings.CEILING_NOTES['additive']}" in text


def of_length(n: int, batch: int, **seconds: float | None) -> list[Measurement]:
    sizes = {"B": batch, "n": n, "m": n, "d": 64}
    why = "absent: `its` intermediates would take 12 GiB"
    return [
        measurement(name, s, size=n, sizes=sizes, work=float(n * n), peak_bytes=2**20 if name == OURS else None,
                    not_timed=why if s is None else "")
        for name, s in seconds.items()
    ]  # fmt: skip


def test_the_page_has_a_row_for_each_size_then_the_growth_of_each_subject() -> None:
    some = [of_length(1024, 1, eager=None, attnspec=0.4, keras=None), of_length(512, 8, eager=1.0, attnspec=0.1)]
    both = run(*(m for group in some for m in group))
    assert list(comparison.rows(both)) == [
        ("case", "n = m, B", "eager", "**attnspec**", "× eager", "× best other", "of ceiling", "peak of attnspec"),
        ("additive attention, forward, 1 thread", "512, 8", "1 s", "100 ms", "10", "10", "0%", "1.0 MiB"),
        ("", "1024, 1", "absent", "400 ms", "", "", "0%", "1.0 MiB"),
        ("", "p", "", "1.00", "", "", "", ""),
    ]
    assert comparison.constants(both) == "d=64"
    assert list(comparison.reasons(both)) == [
        "eager, keras: `absent: 'its' intermediates would take 12 GiB` (1 of 2 cases)"
    ]
    assert list(comparison.summary(both))[1:] == [
        ("additive", "forward", "2", "10 to 10", "10", "10 to 10", "10"),
    ]  # fmt: skip


def test_the_page_names_the_best_of_several_rivals() -> None:
    group = measurement("eager", 1.0), measurement("torch.compile", 0.1), measurement(OURS, 0.02)
    (_, row) = comparison.rows(run(*group))
    assert row[5:7] == ("50", "5, torch.compile")


def test_the_page_links_only_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = run(measurement("eager", 1.0))
    text = page.markdown(toy, pictures=["additive.svg"])
    assert "\n4 cores, AVX, s, Python 3,\n" in text
    assert "\n1 core, AVX" in page.markdown(replace(toy, machine={**toy.machine, "cores": 1}))
    assert "![additive](additive.svg)" in text
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page.write(toy, tmp_path, Console(file=io.StringIO()))
    text = (tmp_path / page.PAGE).read_text()
    assert "![" not in text
    assert "](" not in text


def test_the_page_gives_the_load_as_far_as_it_is_known() -> None:
    def loads(**known: float | None) -> str:
        toy = run()
        return page.load_note(replace(toy, machine={**toy.machine, **known}))

    assert loads() == loads(load_before=None) == ""
    assert loads(load_before=2.5) == ", load 2.5 before"
    assert loads(load_before=2.5, load_after=3.0) == ", load 2.5 before and 3.0 after"


def test_the_share_of_a_ceiling_counts_what_a_unit_of_work_takes_of_it() -> None:
    own = measurement(OURS, 0.01, work=1e6, ceiling="multiply-adds", per_unit=8 / 3)
    assert ceiling_share(run(own), own) == 8 / 30
    assert ceiling_share(run(own), replace(own, limit=4e9)) == 8 / 30 / 4
    assert multiply_adds.least_of_a_term(64, 128) == 8 / 3 + 2
    assert multiply_adds.limiting("cuda", 64, 128) == ("tanh", 1.0)


def test_what_two_threads_gain_is_compared_with_what_multiply_adds_gain() -> None:
    def lines(gain: float | None) -> list[str]:
        threaded = run(measurement("eager", 9.0, threads=2), measurement(OURS, 0.6, threads=2, gain=gain))
        return [line for line in (*floors.missed(threaded), *floors.unchecked(threaded)) if line.startswith("additive")]

    assert (
        "additive: additive attention, forward, n=512, 2 threads: gain of two threads, part of that of multiply-adds: "
        "expected at least 0.9, got 0.8"
    ) in lines(0.8)
    assert not [line for line in lines(0.9) if "two threads" in line]
    assert "additive: gain of two threads, part of that of multiply-adds: not everything was measured" in lines(None)


def test_the_page_shows_what_threads_gain() -> None:
    threaded = run(measurement("eager", 9.0, threads=2), measurement(OURS, 0.6, threads=2, gain=0.934))
    (header, *others) = comparison.rows(threaded)
    assert header[-1] == "gain of threads"
    assert others[0][-1] == "93%"


def test_every_suite_says_what_its_ceiling_is() -> None:
    assert set(ceilings.CEILING_NOTES) == set(SUITES)
    (first_table, *_) = table.tables(run(measurement("eager", 1.0)), 120)
    assert first_table.caption == f"of ceiling: {ceilings.CEILING_NOTES['additive']}"


@pytest.mark.parametrize("width", [80, 120, 140])
def test_a_failure_takes_one_line_of_the_table_and_keeps_its_text(width: int) -> None:
    why = "failed: InductorError: " + "very long " * 20 + "\nand more | lines\n" * 12
    assert brief(why).startswith("failed: InductorError: very long")
    assert len(brief(why)) == REASON
    failing = run(measurement("eager", 1.0), measurement("flex_attention", None, not_timed=why))
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(next(iter(table.tables(failing, width))))
    lines = capture.get().splitlines()
    (at,) = [i for i, line in enumerate(lines) if "flex_attention" in line]
    assert lines[at + 1].startswith("└")
    assert any("eager" in line for line in lines)
    (reason,) = [line for line in page.markdown(failing).splitlines() if "flex_attention" in line]
    assert reason == f"- flex_attention: `{brief(why, comparison.REASON)}`"


def test_floors_are_missed_by_name() -> None:
    assert floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.01))) == []
    (line,) = floors.missed(run(measurement("eager", 1.0), measurement(OURS, 0.05)))
    assert line == (
        "additive: additive attention, forward, n=512, 1 thread: forward, times eager: expected at least 50, got 20"
    )
    grown = [measurement(OURS, s, size=n, sizes={"n": n}) for n, s in ((512, 1.0), (1024, 4.0), (2048, 32.0))]
    grown = [replace(m, work=float(m.size**2)) for m in grown]
    assert any("grows as (n·m)^1.25" in line for line in floors.missed(run(*grown)))
    failing = measurement(OURS, None, not_timed="failed: no")
    assert floors.missed(run(failing)) == [f"{floors.title(failing)}: {OURS} is failed: no"]
    assert "additive: forward, times eager: not everything was measured" in floors.unchecked(run(failing))
    assert "step: step, times eager: no such case in this run" in floors.unchecked(run(failing))
    assert "additive: growth of time: no two sizes from 512 on in this run" in floors.unchecked(run(failing))


def test_values_that_take_far_longer_than_usual_ones_miss_a_floor() -> None:
    usual = {"suite": "never_slower", "case": "additive f32 (4, 64, 64, 64)"}
    tiny = {**usual, "case": f"{usual['case']}, tiny"}
    for seconds, missed in ((2.0, 0), (4.0, 1)):
        times = [measurement(OURS, 1.0, **usual), measurement(OURS, seconds, **tiny)]
        assert len(floors.missed(run(*times))) == missed
    alone = run(measurement(OURS, 3.0, **tiny))
    assert floors.missed(alone) == []
    assert "never_slower: time at usual values, over time at these: not everything was measured" in floors.unchecked(
        alone
    )


@pytest.mark.parametrize(("size", "checked"), [(32, False), (64, True), (4096, True), (8192, False)])
def test_floors_hold_only_for_their_stated_sizes(size: int, checked: bool) -> None:
    slow = {"suite": "sdpa", "case": "padding", "sizes": {"n": size}, "size": size, "baseline": "F.sdpa"}
    slow_run = run(measurement("F.sdpa", 1.0, **slow), measurement(OURS, 2.0, **slow))
    best = "sdpa: times PyTorch's best: no such case in this run"
    assert any("times PyTorch's best" in line for line in floors.missed(slow_run)) is checked
    assert (best in floors.unchecked(slow_run)) is not checked
    assert any("padding, times F.sdpa" in line for line in floors.missed(slow_run)) is (size == 4096)


def test_every_entry_of_a_batch_is_computed_under_its_own_mask() -> None:
    def formula(some: Tensor, query: Tensor, w: Tensor, *, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        return (query[:, some] * w).masked_fill(~mask, 0.0)

    inputs = torch.ones(2, 3, 4), torch.ones(4)
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]], dtype=torch.bool)[..., None].expand(2, 3, 4)
    rows = torch.tensor([0, 1])
    out, of_query, of_w = exact.expected(
        formula, inputs, rows, batched=1, dtype=torch.float64, backward=True, chunk=2, mask=mask
    )
    assert out[0, :, 0].tolist() == [1, 0]
    assert of_query[0, :, 0].tolist() == [1, 0, 1]
    assert of_w.tolist() == [3, -3, 3, -3]
