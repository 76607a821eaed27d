"""The merged reports of a run's shards equal the report of one run."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.reading import ReadReport, merged
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.running.settings import Settings

from .test_cli import attnspec

BACKEND = '''
"""Two right operations, and one whose results are 1 % too large."""
import numpy as np
from attnspec import reference

name = "three"
semantics = {"rejection": "unchecked"}
dot_scores, softmax = reference.dot_scores, reference.softmax


def scaled_dot_scores(query, key):
    return 1.01 * reference.scaled_dot_scores(query, key)
'''

LAW = ("--law", "operation.oracle", "--law", "operation.batch-invariance", "--workers", "1")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the reports of three shards and of one run."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "three.py").write_text(BACKEND, encoding="utf-8")
    for i in (1, 2, 3):
        attnspec("check", "three.py", *LAW, "--shard", f"{i}/3", "--json", f"{i}.json", folder=folder)
    attnspec("check", "three.py", *LAW, "--json", "whole.json", folder=folder)
    return folder


def document(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


@pytest.mark.slow
def test_merged_shards_equal_one_run(reports: Path) -> None:
    done = attnspec("merge", "3.json", "1.json", "2.json", "--json", "merged.json", folder=reports)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "three violates")
    whole, together = document(reports / "whole.json"), document(reports / "merged.json")
    del whole["seconds"], together["seconds"]
    assert together == whole


@pytest.mark.slow
def test_a_shard_judges_its_part(reports: Path) -> None:
    judged = [{(r["operation"], r["dtype"]) for r in document(reports / f"{i}.json")["results"]} for i in (1, 2, 3)]
    whole = {(r["operation"], r["dtype"]) for r in document(reports / "whole.json")["results"]}
    assert set.union(*judged) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (("1", "2"), {}, "each shard once: 1/3, 2/3, 3/3; got 1/3, 2/3"),
        (("1", "1", "2"), {}, "each shard once: 1/3, 2/3, 3/3; got 1/3, 1/3, 2/3"),
        (("whole",), {}, "each shard once: I/N; got None"),
        (("1", "2", "3"), {"seed": 1}, "3.json: seed: expected that of "),
        (("1", "2", "3"), {"versions": {"attnspec": "0"}}, "3.json: expected a report of attnspec "),
    ],
    ids=["one missing", "one twice", "no shard", "another seed", "another version"],
)
def test_other_reports_are_refused(
    reports: Path, tmp_path: Path, names: tuple[str, ...], changes: Mapping[str, Any], message: str
) -> None:
    for name in names:
        changed = {**document(reports / f"{name}.json"), **(changes if name == "3" else {})}
        (tmp_path / f"{name}.json").write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(BackendError) as raised:
        merged([tmp_path / f"{name}.json" for name in names])
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both shards of a run that conforms."""
    folder = tmp_path_factory.mktemp("halves")
    run = ("check", "reference", "--operation", "softmax", "--law", "operation.shape", "--workers", "1")
    for i in (1, 2):
        dtypes = ("--dtype", "float64", "--dtype", "float32")
        attnspec(*run, *dtypes, "--shard", f"{i}/2", "--json", f"{i}.json", folder=folder)
    return document(folder / "1.json"), document(folder / "2.json")


def merge(folder: Path, *documents: Mapping[str, Any]) -> tuple[int, str, str]:
    """Exit status, verdict and error output of merging reports; the verdict is empty if there is no merged report."""
    names = [f"{i}.json" for i, _ in enumerate(documents, 1)]
    for name, shard in zip(names, documents, strict=True):
        (folder / name).write_text(json.dumps(shard), encoding="utf-8")
    result = folder / "merged.json"
    done = CliRunner().invoke(app, ("merge", *(str(folder / name) for name in names), "--json", str(result)))
    if isinstance(done.exception, BackendError):  # ``main`` prints it and ends with status 2
        return 2, "", str(done.exception)
    return done.exit_code, document(result)["verdict"], done.stderr


def test_merged_halves_conform(halves: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    assert merge(tmp_path, *halves) == (0, "conforms", "")


LOST = {"status": "lost", "reason": "time limit", "message": "time limit"}
UNUSABLE = {"verdict": "unusable", "exit_status": 2}


@pytest.mark.parametrize(
    ("changes", "result", "message"),
    [
        ({"results": []}, None, "shard 2/2 ({file}): 1 of its 1 laws have no result"),
        ({"results": [], "reason": "no room", **UNUSABLE}, None, "shard 2/2 ({file}): no room"),
        ({"reason": "time limit", **UNUSABLE}, LOST, "shard 2/2 ({file}): time limit"),
    ],
    ids=["without results", "broken off without results", "broken off with results"],
)
def test_a_shard_without_verdicts_makes_the_run_unusable(
    halves: tuple[dict[str, Any], dict[str, Any]],
    tmp_path: Path,
    changes: dict[str, Any],
    result: dict[str, Any] | None,
    message: str,
) -> None:
    first, second = halves
    changed = {**second, "results": [{**r, **(result or {})} for r in second["results"]], **changes}
    if not changed["results"] and changed["reason"]:
        changed["backend"] = {**changed["backend"], "name": "unknown"}
    status, verdict, errors = merge(tmp_path, first, changed)
    assert (status, verdict) == (2, "unusable")
    assert message.format(file=tmp_path / "2.json") in errors


def test_shards_that_all_broke_off_are_unusable_with_each_reason(tmp_path: Path) -> None:
    broken = [
        Report.without_verdicts("reference", Settings(shard=f"{i}/2"), 1.0, f"reason {i}").as_json() for i in (1, 2)
    ]
    status, verdict, errors = merge(tmp_path, *broken)
    assert (status, verdict) == (2, "unusable")
    assert all(f"shard {i}/2 ({tmp_path / f'{i}.json'}): reason {i}" in errors for i in (1, 2))


def test_a_relabelled_shard_is_refused(halves: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    status, verdict, errors = merge(tmp_path, halves[0], {**halves[0], "shard": "2/2"})
    assert (status, verdict) == (2, "")
    assert f"2.json: expected only results of shard 2/2 ({tmp_path / '2.json'}); got operation.shape by soft" in errors


@pytest.mark.parametrize(
    ("name", "value"),
    [("sandbox", "bubblewrap"), ("in_process", False), ("hang_after", 300.0), ("device", "cuda"), ("profile", "full")],
)
def test_a_shard_with_other_settings_is_refused(
    halves: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, name: str, value: object
) -> None:
    first, second = halves
    assert second[name] != value
    status, verdict, errors = merge(tmp_path, first, {**second, name: value})
    assert (status, verdict) == (2, "")
    assert f"2.json: {name}: expected that of {tmp_path / '1.json'}, {first[name]!r}; got {value!r}" in errors


def test_the_difference_of_two_backends_is_named(halves: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    first, second = halves
    limits = {**second["backend"]["limits"], "max_batch_dims": 0}
    _, _, errors = merge(tmp_path, first, {**second, "backend": {**second["backend"], "limits": limits}})
    assert "2.json: backend.limits.max_batch_dims: expected that of " in errors
    assert "operations" not in errors


EMPTY = Report.without_verdicts("reference", Settings(shard="1/2"), 1.0, "interrupted").as_json()


@pytest.mark.parametrize(("key", "kind"), [*product(EMPTY, ("absent", "of another type"))])
def test_a_damaged_report_is_refused_in_one_line(tmp_path: Path, key: str, kind: str) -> None:
    damaged = {k: x for k, x in EMPTY.items() if k != key} | ({} if kind == "absent" else {key: [7]})
    (tmp_path / "r.json").write_text(json.dumps(damaged), encoding="utf-8")
    with pytest.raises(BackendError, match=rf"r\.json: expected a report.*{key}"):
        ReadReport.read(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("4/3", "--shard: expected I/N with 1 ≤ I ≤ N, such as 2/3; got '4/3'"),
        ("half", "--shard: expected I/N with 1 ≤ I ≤ N, such as 2/3; got 'half'"),
        ("1/9", "--shard: expected at most 1 shards, one per operation and dtype; got 9"),
    ],
)
def test_impossible_shards_are_refused(shard: str, message: str) -> None:
    call = ("check", "reference", "--operation", "softmax", "--dtype", "float64", "--shard", shard, "--in-process")
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 2
    assert message in done.stderr
