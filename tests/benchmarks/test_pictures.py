"""Pictures of the benchmarks: drawn by the command, and shown by the page."""

import io
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import page, plot
from benchmarks.case import OURS
from benchmarks.cli import main
from benchmarks.records import write
from benchmarks.results import Run

from .samples import measurement, run


def two_suites() -> Run:
    sizes = (64, 512)
    measurements = [measurement(name, 1e-3, suite=suite, size=n, sizes={"n": n})
            for suite in ("additive", "step") for n in sizes for name in ("eager", OURS)]  # fmt: skip
    return run(*measurements)


def drawn(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.svg"))


def test_the_command_draws_every_suite_and_the_page_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    write(two_suites(), tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert drawn(tmp_path) == ["additive.svg", "step.svg"]
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    assert "![additive](additive.svg)" in text
    assert "![step](step.svg)" in text
    picture = tmp_path / "additive.svg"
    first = picture.read_bytes()
    assert main(["report", str(tmp_path)]) == 0
    assert picture.read_bytes() == first
    capsys.readouterr()


def test_a_picture_has_a_line_for_each_panel_and_its_words_as_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    forward_run = two_suites()
    backward = [replace(m, mode="forward+backward") for m in forward_run.measurements]
    paths = plot.draw(replace(forward_run, measurements=[*forward_run.measurements, *backward]), tmp_path)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) == 1 + 2
        elements = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
        texts = {"".join(element.itertext()) for element in elements}
        assert {"additive attention, forward, 1 thread", OURS, "tanh rate", "64", "512", "1 ms"} <= texts


def test_without_matplotlib_the_page_is_written_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as capture:
        page.write(two_suites(), tmp_path, console)
    assert capture.get() == "no plots: matplotlib is not installed (the extra `bench` has it)\n"
    assert [path.name for path in tmp_path.iterdir()] == [page.PAGE]
