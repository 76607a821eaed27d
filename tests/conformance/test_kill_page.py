"""The page of kills is of the present suite, and a twentieth of it comes out the same."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attnspec.conformance.mutants import MUTANTS
from attnspec.conformance.mutants.one_weight import ONE_WEIGHT
from attnspec.conformance.running.environment import ONE_THREAD
from attnspec.conformance.running.kept_trials import digest
from attnspec.conformance.running.kill_page import as_text, rendered
from attnspec.conformance.running.kill_trials import Extent, made_with
from attnspec.conformance.running.trials import Key
from attnspec.conformance.variants import VARIANTS

ROOT = Path(__file__).parents[2]
PAGE, DATA = ROOT / "docs" / "kills.md", ROOT / "docs" / "kills.json"

REMAKE = "make the page with `python -m nox -s mutants -- --page`, again until it says that the page is written"

PART = 20
"""One trial of so many is performed again."""


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    if not (PAGE.exists() and DATA.exists()):
        pytest.fail(f"expected docs/kills.md and docs/kills.json; got none: {REMAKE}", pytrace=False)
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def number(*of: object) -> int:
    """A number of the digest of the suite and of the data: whoever edits them cannot know which trials are repeated."""
    known = hashlib.sha256(DATA.read_bytes()).hexdigest()
    return int.from_bytes(hashlib.sha256("\n".join(map(str, (digest(), known, *of))).encode()).digest()[:4])


def chosen(names: Iterable[str]) -> list[str]:
    return [name for name in names if number(name) % PART == 0]


def require_present(data: dict[str, Any]) -> None:
    """Fail where the data are of another suite."""
    if data["digest"] != digest():
        told = f"expected a page of the laws, inputs, mutants and variants of digest {digest()}; got {data['digest']}"
        pytest.fail(f"docs/kills.md: {told}: {REMAKE}", pytrace=False)


def test_the_page_is_of_the_present_suite(data: dict[str, Any]) -> None:
    require_present(data)


def test_a_page_of_another_suite_says_how_it_is_made() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"of digest \w{16}; got 0123: make the page with"):
        require_present({"digest": "0123"})


def test_the_page_is_of_everything(data: dict[str, Any]) -> None:
    extent = Extent()
    assert data["seeds"] == extent.seeds
    assert list(data["mutants"]) == list(MUTANTS)
    assert {*data["variants"], *data["not_tried"]} == set(VARIANTS)
    assert sum(v["checks"] for v in data["variants"].values()) >= extent.checks
    assert data["not_tried"] == {}, "the page is made where every variant can be tried"
    assert data["one_weight"].keys() == {w.dtype for w in extent.weights}


def test_the_page_says_what_the_data_say(data: dict[str, Any]) -> None:
    assert as_text(data) == DATA.read_text(encoding="utf-8")
    if rendered(data, PAGE) != PAGE.read_text(encoding="utf-8"):
        pytest.fail(
            f"docs/kills.md: expected what docs/kills.json and docs/sensitivity.md say: {REMAKE}", pytrace=False
        )


def test_every_mutant_is_killed_and_no_variant_harmed(data: dict[str, Any]) -> None:
    assert [name for name, entry in data["mutants"].items() if not entry["laws"]] == []
    assert [name for name, entry in data["variants"].items() if entry["harmed"]] == []


class Performed(NamedTuple):
    """What became of a trial: the laws that failed, the number of checks, and the largest error of laws that held."""

    laws: list[str]
    checks: int
    largest: float


def performed(trials: Sequence[Key]) -> list[Performed]:
    """Trials in a process like a worker of ``attnspec mutants``."""
    command = [sys.executable, str(Path(__file__).with_name("performing_trials.py"))]
    done = subprocess.run(
        command, input=json.dumps(trials), capture_output=True, text=True, check=False, env={**os.environ, **ONE_THREAD}
    )
    assert done.returncode == 0, done.stderr
    return [Performed(**found) for found in json.loads(done.stdout)]


def test_a_twentieth_of_the_matrix_comes_out_the_same(data: dict[str, Any]) -> None:
    names = chosen(data["mutants"])
    # The last bits of results, and with them what a law makes of a mutant at its limit, depend on what runs.
    exact = data["made_with"] == made_with()
    differing = {}
    for name, found in zip(names, performed([(name, "quick", 0, True) for name in names]), strict=True):
        compared = {*found.laws, *data["mutants"][name]["laws"]} if exact else set(MUTANTS[name].breaks)
        if different := compared & ({*found.laws} ^ {*data["mutants"][name]["laws"]}):
            differing[name] = sorted(different)
    if differing:
        pytest.fail(f"docs/kills.md: laws that kill now and did not, or did and do not: {differing}", pytrace=False)


def test_mutants_are_missed_where_the_page_says_so(data: dict[str, Any]) -> None:
    trials: list[Key] = [
        (name, profile, number(name, profile) % count, False)
        for name in chosen(data["mutants"])
        for profile, count in data["seeds"].items()
    ]
    survived = {trial: not found.laws for trial, found in zip(trials, performed(trials), strict=True)}
    assert survived == {t: t[2] in data["mutants"][t[0]][t[1]] for t in trials}


def test_variants_are_not_harmed_at_seeds_of_the_page(data: dict[str, Any]) -> None:
    names = [name for name in chosen(data["variants"]) if not VARIANTS[name].lacking()]
    trials: list[Key] = [(name, "quick", number(name, "seed") % data["variant_seeds"], False) for name in names]
    assert [t for t, found in zip(trials, performed(trials), strict=True) if found.laws] == []


def test_a_variant_has_as_many_checks_and_as_large_errors_as_the_page_says(data: dict[str, Any]) -> None:
    """One of them, at all seeds. Without the processor and packages of the page, numbers of the same size will do."""
    names = sorted(name for name, variant in VARIANTS.items() if not variant.lacking())
    name = names[number("variant") % len(names)]
    found = performed([(name, "quick", seed, False) for seed in range(data["variant_seeds"])])
    entry = data["variants"][name]
    checks, largest = sum(x.checks for x in found), max(x.largest for x in found)
    if data["made_with"] == made_with():
        assert (name, entry["checks"], entry["largest"]) == (name, checks, round(largest, 3))
    else:
        assert (entry["checks"], entry["largest"]) == pytest.approx((checks, largest), rel=0.1), name


def test_the_smallest_error_of_a_weight_is_the_smallest(data: dict[str, Any]) -> None:
    """In one dtype: it is convicted at a seed, and half of it survives at one of all."""
    dtype = sorted(data["one_weight"])[number("weight") % len(data["one_weight"])]
    known = {w.error: w.name for w in ONE_WEIGHT if w.dtype == dtype}
    smallest, seeds = data["one_weight"][dtype], range(data["seeds"]["full"])
    (convicted,) = performed([(known[smallest], "full", number(dtype) % len(seeds), False)])
    assert convicted.laws, (dtype, smallest)
    if smallest / 2 in known:
        found = performed([(known[smallest / 2], "full", seed, False) for seed in seeds])
        assert not all(x.laws for x in found), (dtype, smallest)
