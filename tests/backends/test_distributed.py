"""Context-parallel attention: sharded results and gradients are those of the whole, and no rank waits for ever."""

import inspect
import re
import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.backends.pytorch import distributed
from attnspec.backends.pytorch.distributed import costs
from attnspec.spec import OPERATIONS
from attnspec.spec.contract.tree import flatten
from tests.budgets import assert_gradients_within_budgets, assert_within_budgets

from .ranks import (
    Case,
    backwards,
    computed,
    computed_in_a_group,
    counted,
    differing,
    dying,
    positions,
    run,
    uneven,
    with_stale_keys,
)

METHODS = list(distributed.METHODS)
DIVISIONS = [distributed.zigzag, distributed.contiguous, uneven, backwards]
PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
PROGRAM = Path(__file__).parents[2] / "examples" / "commands" / "context_parallel.py"


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def grouped(n: int = 9, m: int = 9, **options: Any) -> Case:
    arguments = {"query": draw(2, 4, n, 3), "key": draw(2, 2, m, 3), "value": draw(2, 2, m, 5), **options}
    return "grouped_query_attention", arguments, (draw(2, 4, n, 5, seed=1), draw(2, 4, n, seed=1))


def additive(n: int = 9, m: int = 9, **options: Any) -> Case:
    weights = {"w_q": draw(6, 3), "w_k": draw(6, 2), "w_v": draw(6)}
    arguments = {"query": draw(2, n, 3), "key": draw(2, m, 2), "value": draw(2, m, 5), **weights, **options}
    return "additive_attention", arguments, (draw(2, n, 5, seed=1),)


def scaled(n: int = 9, **options: Any) -> Case:
    arguments = {"query": draw(2, n, 3), "key": draw(2, n, 3), "value": draw(2, n, 5), **options}
    return "scaled_dot_product_attention", arguments, (draw(2, n, 5, seed=1),)


def packed(ends: tuple[int, ...] = (0, 2, 2, 7, 9), **options: Any) -> Case:
    _, arguments, cotangents = grouped(ends[-1], ends[-1], **options)
    return (
        "variable_length_attention",
        {**arguments, **dict.fromkeys(("query_ends", "key_ends"), np.array(ends))},
        cotangents,
    )


def some_pairs(n: int, m: int) -> Any:
    return np.random.default_rng(n).random((n, m)) < 0.6


FEW = [
    grouped(causal=True, window=(4, None), softcap=3.0, bias=draw(1, 4, 9, 9), slopes=draw(4), sinks=draw(4)),
    grouped(5, 9, mask=some_pairs(5, 9), key_lengths=np.array([9, 3])),
    additive(causal=True),
    packed(causal=True, slopes=draw(4), sinks=draw(4)),
]
MORE = [
    *(grouped(), grouped(causal=True), grouped(1, 7), grouped(window=(1, 1)), grouped(2, 2, causal=True)),
    *(grouped(bias=draw(4, 1, 1)), grouped(slopes=draw(4), scale=0.3), grouped(3, 0), grouped(0, 3)),
    *(additive(), additive(4, 7, mask=some_pairs(4, 7)), scaled(causal=True), scaled(mask=some_pairs(9, 9))),
    *(packed(), packed((0, 5, 9), window=(1, 0)), packed(key_lengths=np.array([1, 0, 3, 4]))),
]  # fmt: skip


def assert_equal_to_the_whole(outcomes: Any, cases: list[Case], methods: list[str], divisions: list[Any]) -> None:
    """Joined rows and summed gradients are within the budgets of the whole operation."""
    assert [how for how, _ in outcomes] == ["returned"] * len(outcomes), outcomes
    parts = zip(*(results for _, results in outcomes), strict=True)
    for ((name, arguments, cotangents), _, divide), ranks in zip(
        product(cases, methods, divisions), parts, strict=True
    ):
        rows = {x: divide(arguments[x].shape[-2], len(ranks)) for x in ("query", "key")}
        rows["value"] = rows["key"]
        paths = [leaf.path for leaf in OPERATIONS[name].outputs]
        results = tuple(
            joined([list(flatten(result).values())[i] for result, _ in ranks], rows["query"], axis)
            for i, axis in zip(range(len(paths)), (-2, -1), strict=False)
        )
        single = len(paths) == 1
        assert_within_budgets(results[0] if single else results, name, **arguments, informative=False)
        gradients = {
            path: joined([of[path] for _, of in ranks], rows[path], -2)
            if path in rows
            else np.sum([of[path] for _, of in ranks], 0)
            for path in ranks[0][1]
        }
        weights = cotangents[0] if single else cotangents
        assert_gradients_within_budgets(gradients, weights, name, **arguments, informative=False)


def joined(parts: list[Any], shards: distributed.Shards, axis: int) -> Any:
    """Rows of all ranks, in the order of positions."""
    order = np.concatenate([positions(shard).numpy() for shard in shards])
    return np.take(np.concatenate(parts, axis), np.argsort(order), axis)


@pytest.mark.parametrize("case", [grouped(), additive(), scaled(), packed()], ids=lambda case: case[0])
def test_every_argument_of_the_operation_is_taken(case: Case) -> None:
    taken = inspect.signature(getattr(distributed, case[0])).parameters
    assert set(OPERATIONS[case[0]].call.names) <= set(taken)


def test_two_ranks_compute_the_whole(tmp_path: Path) -> None:
    cases, divisions = FEW, DIVISIONS[::2]
    assert_equal_to_the_whole(
        run(computed, cases, METHODS, divisions, ranks=2, folder=tmp_path), cases, METHODS, divisions
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "cases", "divisions"), [(1, FEW, DIVISIONS[:1]), (3, FEW, DIVISIONS), (4, MORE, DIVISIONS[::2])]
)
def test_any_number_of_ranks_computes_the_whole(
    ranks: int, cases: list[Case], divisions: list[Any], tmp_path: Path
) -> None:
    outcomes = run(computed, cases, METHODS, divisions, ranks=ranks, folder=tmp_path)
    assert_equal_to_the_whole(outcomes, cases, METHODS, divisions)


@pytest.mark.slow
def test_a_group_of_some_ranks_computes_the_whole(tmp_path: Path) -> None:
    divisions = [distributed.zigzag]
    _, *outcomes = run(computed_in_a_group, FEW, METHODS, divisions, ranks=3, folder=tmp_path)
    assert_equal_to_the_whole(outcomes, FEW, METHODS, divisions)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed in the forward pass", "killed in the backward pass", "absent"])
@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_dies_or_never_calls_is_an_error_on_the_others(method: str, how: str, tmp_path: Path) -> None:
    *others, last = run(dying, grouped(), method, how, ranks=3, folder=tmp_path, timeout=4)
    for outcome, (seconds, error) in others:
        assert outcome == "returned"
        assert error
        assert seconds < 12
    assert last[0] == ("returned" if how == "absent" else "ended")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["rows", "causal", "features", "gradients"])
def test_a_rank_that_calls_differently_is_an_error_on_all(change: str, tmp_path: Path) -> None:
    outcomes = run(differing, grouped(), change, ranks=2, folder=tmp_path)
    assert {how for how, _ in outcomes} == {"raised"}
    assert all("grouped_query_attention: " in error for _, error in outcomes), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bytes_and_steps_are_those_counted(ranks: int, tmp_path: Path) -> None:
    outcomes = run(counted, grouped(8, 13), METHODS, DIVISIONS, ranks=ranks, folder=tmp_path)
    for rank, (how, counts) in enumerate(outcomes):
        assert how == "returned", counts
        for (method, divide), count in zip(product(METHODS, DIVISIONS), counts, strict=True):
            shards = divide(8, ranks), divide(13, ranks)
            expected = distributed.communication(method, rank, *shards, batch=2, heads=4, heads_k=2, d=3, d_v=5)
            assert count == [tuple(cost) for cost in expected], (method, divide)


@pytest.mark.slow
def test_stale_keys_in_the_backward_pass_are_beyond_the_budgets(tmp_path: Path) -> None:
    """The defect of huggingface/diffusers#14265: results are right, gradients are silently wrong."""
    case = grouped(8, 8)
    outcomes = run(with_stale_keys, case, ranks=2, folder=tmp_path)
    with pytest.raises(AssertionError, match=r"query.*budgets away"):
        assert_equal_to_the_whole(outcomes, [case], ["ring"], [distributed.contiguous])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("divide", DIVISIONS)
def test_every_position_belongs_to_one_rank(divide: Any, ranks: int) -> None:
    for length in range(12):
        runs = [run for shard in divide(length, ranks) for run in shard]
        assert sorted(i for run in runs for i in run) == list(range(length))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("divide", DIVISIONS)
def test_pairs_of_ranks_are_counted(divide: Any, causal: bool) -> None:
    queries, keys = ([positions(shard) for shard in divide(length, 3)] for length in (13, 9))
    expected = [[int((i[:, None] >= j).sum() if causal else len(i) * len(j)) for j in keys] for i in queries]
    assert costs.pairs(divide(13, 3), divide(9, 3), causal).tolist() == expected


SIZES: dict[str, Any] = {"heads": 4, "heads_k": 2, "d": 3, "d_v": 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ulysses"}, "method: expected one of ring, all-gather, heads; got 'ulysses'"),
        ({"rank": 3}, "rank: expected 0 to 2; got 3"),
        ({"query_shards": distributed.zigzag(9, 2)}, "query_shards: expected 3 shards, as of keys; got 2"),
        ({"heads": 3}, "heads: expected a multiple of heads_k = 2; got 3"),
    ],
)
def test_costs_of_impossible_calls_are_refused(change: dict[str, Any], message: str) -> None:
    shards = distributed.zigzag(9, 3)
    right: dict[str, Any] = {"method": "ring", "rank": 0, "query_shards": shards, "key_shards": shards, **SIZES}
    with pytest.raises(ValueError, match=f"^communication: {message}$"):
        distributed.communication(**(right | change))


@pytest.mark.parametrize("divide", DIVISIONS)
def test_without_delays_a_simulated_pass_takes_the_time_of_the_slowest_rank(divide: Any) -> None:
    shards = divide(32, 4)
    fast: dict[str, Any] = {"flops": 1.0, "bandwidth": 1e30}
    slow: dict[str, Any] = {"flops": 1e30, "bandwidth": 1.0}
    operations = 2 * 4 * (3 + 5) * costs.pairs(shards, shards, True)
    gathering, ring = (partial(distributed.forward_seconds, x, shards, shards) for x in ("all-gather", "ring"))
    assert gathering(**SIZES, **fast, causal=True) == operations.sum(1).max()
    block = [[int(operations[rank, rank - step]) for rank in range(4)] for step in range(4)]
    assert operations.sum(1).max() <= ring(**SIZES, **fast, causal=True) <= sum(map(max, block))
    sent = [distributed.communication("all-gather", r, shards, shards, **SIZES)[0].sent for r in range(4)]
    assert gathering(**SIZES, **slow) == max(sent)


def test_a_simulated_ring_computes_while_it_sends() -> None:
    shards = distributed.zigzag(32, 4)
    operations = 2 * 4 * (3 + 5) * 32 * 33 / 2 / 4
    sent = 3 * (32 / 4) * 2 * (3 + 5) * 4
    for bandwidth in (0.5, 2.0):
        seconds = distributed.forward_seconds(
            "ring", shards, shards, flops=1.0, bandwidth=bandwidth, causal=True, **SIZES
        )
        assert max(operations, sent / bandwidth) <= seconds <= operations + sent / bandwidth


def test_zigzag_gives_causal_queries_the_same_number_of_keys() -> None:
    keys = [sum(i + 1 for run in shard for i in run) for shard in distributed.zigzag(64, 4)]
    assert len({*keys}) == 1


def torchrun(ranks: int, program: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), program]


def checked(ranks: int, program: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Verdict of ``attnspec check`` on a program of several ranks."""
    command = " ".join(torchrun(ranks, program))
    check = [sys.executable, "-m", "attnspec", "check", "--command", command, "--hang-after", "120", *options]
    return subprocess.run(check, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "how"), [(2, "ring zigzag"), (4, "heads contiguous")])
def test_a_program_of_several_ranks_conforms(ranks: int, how: str, tmp_path: Path) -> None:
    done = checked(ranks, f"{PROGRAM} {how}", tmp_path, "--law", "operation.oracle", "--law", "operation.gradient")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_program_whose_rank_is_killed_is_convicted(tmp_path: Path) -> None:
    code, call = PROGRAM.read_text(encoding="utf-8"), "            answers = answer("
    assert call in code
    killed = f"            if dist.get_rank() == 1:\n                __import__('os').abort()\n{call}"
    (tmp_path / "program.py").write_text(code.replace(call, killed), encoding="utf-8")
    options = ["--law", "operation.oracle", "--operation", "additive_attention", "--dtype", "float32"]
    done = checked(2, "program.py", tmp_path, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ended the process" in done.stdout


@pytest.mark.slow
def test_the_page_shows_what_two_ranks_print(tmp_path: Path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "rows.py").write_text(code, encoding="utf-8")
    done = subprocess.run(torchrun(2, "rows.py"), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    (line,) = re.findall(r"  # (.*)", code)
    # Two ranks may write between the parts of each other's line.
    assert re.findall(r"\(.*?\)", done.stdout) == 2 * re.findall(r"\(.*?\)", line), done.stderr
