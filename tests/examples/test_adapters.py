"""First adapters to other libraries: what a run proposes is pasted once, and the next run names what is left."""

from pathlib import Path

import pytest

from examples.adapters.twice import ADAPTERS, HERE, pasted, twice


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_declaration_is_pasted_below_the_name(name: str) -> None:
    file, adapter = ADAPTERS[name]
    source = (HERE / file).read_text(encoding="utf-8")
    assert pasted(source, adapter, {}) == source
    changed = pasted(source, adapter, {"semantics": {"rejection": "unchecked"}, "limits": {"max_length": 4}})
    added = [line for line in changed.splitlines() if line not in source.splitlines()]
    assert added == ["    semantics = {'rejection': 'unchecked'}", "    limits = {'max_length': 4}"]
    body = changed[changed.index(f"class {adapter}(") :]
    assert body.index("    name = ") < body.index(added[0]) < body.index(added[1]) < body.index("    def ")
    assert {"semantics", "precision", "limits"}.isdisjoint(source.split())


@pytest.mark.slow
def test_of_pytorch_the_second_run_names_the_batch_of_a_mask_alone(tmp_path: Path) -> None:
    """PyTorch does not take the batch of a result from a mask."""
    runs = twice("torch_sdpa", tmp_path, "--dtype", "float32", "--workers", "1")
    assert runs.pasted == {"semantics": {"masked_nonfinite": "propagates", "rejection": "unchecked"}}
    of_the_mask = ("operation.broadcasting",)
    assert {*of_the_mask, "operation.rejection"} < set(runs.before["float32"])
    assert runs.after == {"float32": of_the_mask}
