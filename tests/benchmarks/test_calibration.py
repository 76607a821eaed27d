"""Constants of the choice among paths, as the benchmarks print them."""

import pytest

pytest.importorskip("torch", reason="the benchmarks time PyTorch")
pytest.importorskip("llvmlite", reason="there is one path without llvmlite")
from attnspec.backends.pytorch.kernels.costs import COLUMNS, Cost, parsed
from benchmarks.calibration import row


def test_a_table_is_read_as_it_is_printed() -> None:
    key = ("dot", "decode", "float32", "forward")
    lines = ["# where it was measured", "\t".join(COLUMNS), row(key, (12.344, 0.5, 0, 1e-4), (1.5, 0, 0.99))]
    assert parsed("\n".join(lines)) == {key: Cost(12.3, 0.5, 0, 1e-4, (1.5, 0, 0.99))}
    lines[2] = row(key, (1, 2, 3, 4), ())
    assert parsed("\n".join(lines)) == {key: Cost(1, 2, 3, 4)}
