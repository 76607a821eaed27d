"""The suite stays within declared limits: a backend that raises beyond them conforms."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnspec import reference
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.inputs.heads import divided_sizes, heads_divide_width
from attnspec.conformance.judging.cases import Case, governing_laws
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.spec import OPERATIONS, Limits

STRICT = """
from attnspec.reference.attention import additive_attention
from attnspec.reference.scoring import additive_scores
from attnspec.reference.seq2seq import bahdanau_context

LIMITS = {limits}


def within(compute, batched, one_row):
    def checked(*args, **kwargs):
        arrays = dict(zip(batched, args), **kwargs)
        batches = [arrays[name].shape[: -1 if name == one_row else -2] for name in batched]
        rows = [arrays[name].shape[-2] for name in batched if name != one_row]
        assert max(map(len, batches)) <= LIMITS.get("max_batch_dims", 3), batches
        assert all(n % LIMITS.get("multiple_of", 1) == 0 for n in rows), rows
        assert LIMITS.get("broadcasting", True) or len(set(batches)) == 1, batches
        return compute(*args, **kwargs)

    return checked


class Strict:
    name = "strict"
    limits = {{"dtypes": ("float64",), **LIMITS}}
    additive_scores = staticmethod(within(additive_scores, ("query", "key"), None))
    additive_attention = staticmethod(within(additive_attention, ("query", "key", "value"), None))
    bahdanau_context = staticmethod(within(bahdanau_context, ("state", "annotations"), "state"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"max_batch_dims": 0}, {"multiple_of": 8}, {"broadcasting": False}], ids=str)
def test_a_backend_that_raises_beyond_its_limits_conforms(limits: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(STRICT.format(limits=limits), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "strict.py:Strict", "--profile", "quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


DIVIDED = """
from attnspec.reference.multihead import multi_head_attention as correct


class Divided:
    name = "divided"
    limits = {{"dtypes": ("float64",), "divided_heads": True}}

    @staticmethod
    def multi_head_attention(query, key, value, w_q, w_k, w_v, w_o, **options):
        heads, p, width = w_q.shape
        widths = [x.shape[-1] for x in (query, key, value, w_k, w_v)] + [w_o.shape[0]]
        assert w_q.shape == w_k.shape == w_v.shape, "outside of the limits"
        assert heads * p == width and set(widths) == {{width}}, "outside of the limits"
        return correct(query, key, value, w_q, w_k, w_v, w_o, **options){error}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [("", 0), (" * (1 + 1e-3 * (heads > 1))", 1)], ids=["correct", "wrong"])
def test_heads_divide_the_width_of_all_inputs_and_of_counterexamples(error: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "divided.py").write_text(DIVIDED.format(error=error), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "divided.py:Divided", "--profile", "quick"]
    laws = ["--law", "operation.oracle"] if error else []
    done = subprocess.run(
        [*command, *laws, "--workers", "1"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "outside of the limits" not in done.stdout + done.stderr
    assert "divided heads True" in done.stdout


@pytest.mark.parametrize("head_sizes", [None, (4, 8)])
@pytest.mark.parametrize("name", [name for name, o in OPERATIONS.items() if divided_sizes(o).heads])
def test_examples_have_heads_that_divide_the_width(name: str, head_sizes: tuple[int, ...] | None) -> None:
    operation, limits = OPERATIONS[name], Limits(divided_heads=True, head_sizes=head_sizes)
    divided = divided_sizes(operation)
    free_examples = 0
    for seed in range(3):
        for example in corners(operation, limits, seed=seed, most=8, work=2.0**16):
            sizes = example.sizes
            (heads,), (part,) = ({sizes[size] for size in group} for group in (divided.heads, divided.parts))
            assert {sizes[size] for size in divided.widths} == {heads * part}
            assert head_sizes is None or part in head_sizes
            arguments = example.arguments(operation, "float64")
            assert heads_divide_width(arguments, limits)
            free_examples += heads > 1 and part > 1
    assert free_examples
    assert not all(
        heads_divide_width(example.arguments(operation, "float64"), limits)
        for example in corners(operation, Limits(), seed=0, most=8, work=2.0**12)
    )


OPTIONS = "operation.options-have-effect"


@pytest.mark.parametrize("longest", [1, 2])
@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if OPTIONS in governing_laws(o) and o.lengths])
def test_options_are_judged_within_short_limits(name: str, longest: int) -> None:
    backend = SimpleNamespace(name="short", limits={"max_length": longest}, **{name: getattr(reference, name)})
    case = Case(name, "float32", (OPTIONS,), laws_selected=True)
    assert not [r for r in judge(backend, Contract.of(backend), case, PROFILES["quick"]) if r.violates or r.unchecked]
