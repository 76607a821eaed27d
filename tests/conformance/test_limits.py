"""The suite stays within what a backend declares: one that raises outside of it is not convicted."""

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("limits", [{"max_batch_dims": 0}, {"multiple_of": 8}, {"broadcasting": False}], ids=str)
def test_a_backend_that_raises_outside_of_its_limits_conforms(limits: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(STRICT.format(limits=limits), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.cli", "check", "strict.py:Strict", "--profile", "quick"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
