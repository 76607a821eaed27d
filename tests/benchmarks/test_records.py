"""The file of results: one line for a measurement, the round trip, refused files and their messages."""

import json
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks.case import OURS
from benchmarks.cli import main
from benchmarks.records import FILE, FORMER_FILE, KINDS, MACHINE, SCHEMA, present, read, write
from benchmarks.results import Measurement, significant

from .samples import measurement, run

RUN = run(
    measurement("eager", 1.0, error=1.5e-7, peak_bytes=2**20, first_call=0.25),
    measurement("torch.compile", None, not_timed="failed: two\nlines, a\u2028separator and \"quotes\""),
    measurement(OURS, None, not_timed="wrong: output", error=inf),
    measurement("keras", 2.0, peak_unknown="needs Linux"),
)  # fmt: skip


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    write(RUN, tmp_path)
    assert read(tmp_path) == RUN
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_measurement_takes_one_line_of_json_without_what_is_not_known(tmp_path: Path) -> None:
    write(RUN, tmp_path)
    text = (tmp_path / FILE).read_text(encoding="utf-8")
    assert text.endswith("}\n")
    header, *records = (json.loads(line, parse_constant=pytest.fail) for line in text.removesuffix("\n").split("\n"))
    assert header["schema"] == SCHEMA
    assert [record["subject"] for record in records] == ["eager", "torch.compile", OURS, "keras"]
    assert records[2]["error"] == "inf"
    assert {"not_timed", "peak_unknown"} & records[0].keys() == set()
    assert {"seconds", "quartiles", "error", "peak_bytes"} & records[1].keys() == set()


def test_a_file_that_is_being_written_does_not_harm_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(RUN, tmp_path)

    def full(self: Path, text: str, **options: object) -> None:
        with self.open("w", encoding="utf-8") as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write(run(), tmp_path)
    assert read(tmp_path) == RUN


def test_times_and_rates_keep_six_significant_digits() -> None:
    assert [significant(x) for x in (0.0074222929979, 1198125679.04, 0.0, 5.795656836e-07, 2.5, inf)] == [
        0.00742229, 1198130000.0, 0.0, 5.79566e-07, 2.5, inf,
    ]  # fmt: skip


def test_every_field_has_a_kind_that_is_checked() -> None:
    assert {f.type for f in fields(Measurement)} | set(MACHINE.values()) <= KINDS.keys()


Lines = list[dict[str, Any]]


def lines() -> Lines:
    """A header and the record of a measurement, as JSON has them."""
    header = {"schema": SCHEMA, "device": "cpu", "machine": dict(RUN.machine), "ceilings": {"1": {"tanh": 1e9}}}
    record = {
        "suite": "additive", "case": "additive attention", "mode": "forward", "sizes": {"n": 512}, "size": 512,
        "threads": 1, "subject": "eager", "baseline": "eager", "work": 1e6, "unit": "terms", "ceiling": "tanh",
    }  # fmt: skip
    return [header, record]


def changed(number: int, **entries: Any) -> bytes:
    """The two lines; entries of one are replaced, or left out where they are ``...``."""
    records = lines()
    records[number - 1] = {k: v for k, v in (records[number - 1] | entries).items() if v is not ...}
    return "".join(json.dumps(line) + "\n" for line in records).encode()


def machine(**entries: Any) -> bytes:
    return changed(1, machine={k: v for k, v in ({**RUN.machine} | entries).items() if v is not ...})


def test_a_file_without_broken_lines_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(changed(2))
    assert [m.size for m in read(tmp_path).measurements] == [512]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"got a folder without {FILE}"),
        (b"\xff", f"got a {FILE} that is not UTF-8 text"),
        (b"", f"got a {FILE} that is not JSON from line 1, column 1 on"),
        (b'{"schema": 1 2}', f"got a {FILE} that is not JSON from line 1, column 14 on"),
        (changed(2)[:-9], f"got a {FILE} that is not JSON from line 2, column 207 on"),
        (changed(2) + b"\n\n", f"got a {FILE} that is not JSON from line 3, column 1 on"),
        (b"[]\n", f"got a {FILE} whose first line has schema None instead of '{SCHEMA}'"),
        (
            changed(1, schema="attnspec-benchmarks/9"),
            f"got a {FILE} whose first line has schema 'attnspec-benchmarks/9' instead of '{SCHEMA}'",
        ),
        (changed(1, machine=...), f"got a {FILE} without 'machine' in line 1"),
        (changed(1, machine=[]), f"got a {FILE} where 'machine' in line 1 is [] instead of an object"),
        (
            changed(1, ceilings={"1": 2}),
            f"got a {FILE} where 'ceilings' in line 1 is {{\"1\": 2}} instead of an object of objects of numbers",
        ),
        (machine(time=...), f"got a {FILE} without 'time' in the machine in line 1"),
        (machine(cores="4"), f"got a {FILE} where 'cores' in the machine in line 1 is \"4\" instead of an integer"),
        (
            machine(load_after="high"),
            f"got a {FILE} where 'load_after' in the machine in line 1 is \"high\" instead of a number or null",
        ),
        (changed(2, work=...), f"got a {FILE} without 'work' in line 2"),
        (changed(2, speed=1), f"got a {FILE} with the unknown field 'speed' in line 2"),
        (changed(2, work="much"), f"got a {FILE} where 'work' in line 2 is \"much\" instead of a number"),
        (changed(2, threads=True), f"got a {FILE} where 'threads' in line 2 is true instead of an integer"),
        (
            changed(2, quartiles=[1.0]),
            f"got a {FILE} where 'quartiles' in line 2 is [1.0] instead of two numbers or null",
        ),
        (
            changed(2, sizes={"n": "x" * 99}),
            f'got a {FILE} where \'sizes\' in line 2 is {{"n": "{"x" * 32}… instead of an object of integers',
        ),
        (changed(1) + b"[1]\n", f"got a {FILE} without 'suite' in line 3"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(
    content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"benchmarks: {tmp_path}: expected a folder with {FILE}; {message}\n"


def test_results_in_the_former_format_are_refused_and_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = tmp_path / FORMER_FILE
    former.write_text('{"schema": "attnspec-benchmarks/1"}', encoding="utf-8")
    reason = f"got a {FORMER_FILE}, the format of earlier versions, which is no longer read"
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"benchmarks: {tmp_path}: expected a folder with {FILE}; {reason}\n"
    assert main(["--quick", "--suite", "scorers", "--output", str(tmp_path)]) == 2
    expected = "expected an empty folder or results of this machine"
    assert capsys.readouterr().err == f"benchmarks: --output: {expected}; {reason}\n"
    assert [path.name for path in tmp_path.iterdir()] == [FORMER_FILE]
    write(RUN, tmp_path)
    assert read(tmp_path) == RUN


def test_an_empty_folder_has_no_results(tmp_path: Path) -> None:
    assert not present(tmp_path)
