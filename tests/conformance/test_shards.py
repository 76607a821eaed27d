"""The merged reports of a run's shards equal the report of one run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.reading import merged

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
