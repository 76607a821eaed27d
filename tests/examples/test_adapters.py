"""First adapters to other libraries: paste the proposed declaration once, run again."""

from pathlib import Path

import pytest

from examples.adapters.twice import ADAPTERS, HERE, paste_declaration, twice


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_declaration_is_pasted_below_the_name(name: str) -> None:
    file, adapter = ADAPTERS[name]
    source = (HERE / file).read_text(encoding="utf-8")
    assert paste_declaration(source, adapter, {}) == source
    changed = paste_declaration(source, adapter, {"semantics": {"rejection": "unchecked"}, "limits": {"max_length": 4}})
    added = [line for line in changed.splitlines() if line not in source.splitlines()]
    assert added == ["    semantics = {'rejection': 'unchecked'}", "    limits = {'max_length': 4}"]
    body = changed[changed.index(f"class {adapter}(") :]
    assert body.index("    name = ") < body.index(added[0]) < body.index(added[1]) < body.index("    def ")
    assert {"semantics", "precision", "limits"}.isdisjoint(source.split())


@pytest.mark.slow
def test_the_second_run_on_pytorch_names_only_the_batch_of_a_mask(tmp_path: Path) -> None:
    """PyTorch does not take the batch of a result from a mask."""
    runs = twice("torch_sdpa", tmp_path, "--dtype", "float32", "--workers", "1")
    assert runs.declaration == {"semantics": {"masked_nonfinite": "propagates", "rejection": "unchecked"}}
    of_the_mask = ("operation.broadcast-equals-repeat",)
    assert {*of_the_mask, "operation.rejection"} < set(runs.before["float32"])
    assert runs.after == {"float32": of_the_mask}
