"""What no single module can hold by itself: who imports whom, what belongs to what, how modules are written."""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module

import pytest

from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants import MUTANTS
from attnspec.reference import REFERENCE
from attnspec.spec import CHAPTERS, LAWS, OPERATIONS, QUESTIONS, Operation

from .modules import PORTIONS, ROOT, Module, modules

ALL = modules()
CONTRACT = [o for o in OPERATIONS.values() if not o.reference_only]

# Who imports whom -----------------------------------------------------------------------------------------------------

OURS = {
    "spec": {"spec"},
    "reference": {"spec", "reference"},
    "backends": {"spec", "backends"},
    "conformance": {"spec", "reference", "conformance"},
}
STRANGERS = {
    "spec": {"numpy", "jaxtyping", "typing_extensions"},
    "reference": {"numpy", "jaxtyping", "typing_extensions", "ml_dtypes"},
    "backends": {"numpy", "jaxtyping", "typing_extensions", "ml_dtypes", "torch", "triton", "llvmlite", "jax"},
    "conformance": {"numpy", "jaxtyping", "typing_extensions", "ml_dtypes", "hypothesis", "pytest", "rich", "typer"},
}


def forbidden(module: Module) -> list[str]:
    """What a module imports and may not."""
    allowed = STRANGERS[module.portion] | sys.stdlib_module_names
    ours = tuple(f"attnspec.{portion}." for portion in OURS[module.portion])
    return [
        name
        for name in module.imports()
        if not (f"{name}.".startswith(ours) if name.startswith("attnspec") else name.split(".")[0] in allowed)
    ]


def test_dependencies_point_one_way() -> None:
    assert {m.name: forbidden(m) for m in ALL if forbidden(m)} == {}


def test_the_rule_sees_imports_everywhere() -> None:
    source = "import a.b\nfrom .c import d\nif TYPE_CHECKING:\n    from ...e import f\ndef g():\n    from h.i import j"
    module = Module("spec", ROOT / "spec" / "attnspec" / "spec" / "laws" / "x.py")
    module.__dict__["tree"] = ast.parse(source)
    assert set(module.imports()) == {"a.b", "attnspec.spec.laws.c.d", "attnspec.e.f", "h.i.j"}


def test_concrete_backends_do_not_know_each_other() -> None:
    concrete = {"pytorch", "torch_native"}
    for module in modules("backends"):
        imported = {part for name in module.imports() for part in name.split(".") if name.startswith("attnspec.")}
        assert imported & concrete <= set(module.name.split(".")), module.name


@pytest.mark.parametrize("portion", PORTIONS)
def test_the_namespace_has_four_typed_portions(portion: str) -> None:
    assert not (ROOT / portion / "attnspec" / "__init__.py").exists()
    assert not (ROOT / portion / "__init__.py").exists()
    assert (ROOT / portion / "attnspec" / portion / "py.typed").is_file()
    assert [p.name for p in (ROOT / portion / "attnspec").iterdir() if p.name != "__pycache__"] == [portion]


def loaded_by(module: str) -> set[str]:
    """The modules that are loaded after an import, in a fresh process."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_pytest_plugin_is_light() -> None:
    loaded = loaded_by("attnspec.conformance.plugin")
    assert not loaded & {"numpy", "hypothesis", "jaxtyping", "torch", "rich", "typer"}
    assert {n for n in loaded if n.startswith("attnspec.")} == {"attnspec.conformance", "attnspec.conformance.plugin"}


@pytest.mark.parametrize("module", ["attnspec.spec", "attnspec.reference", "attnspec.conformance.cli"])
def test_no_framework_is_loaded_unless_a_backend_needs_it(module: str) -> None:
    assert not {"torch", "jax", "triton", "llvmlite"} & loaded_by(module)


# What belongs to what -------------------------------------------------------------------------------------------------


def test_every_law_has_one_check() -> None:
    assert set(CHECKS) == set(LAWS)


def test_every_law_has_a_mutant() -> None:
    assert set(LAWS) - {law for m in MUTANTS.values() for law in m.breaks} == set()


def test_every_law_governs_something() -> None:
    assert [law.id for law in LAWS.values() if not law.operations] == []


def test_mutants_name_laws_and_operations_that_exist() -> None:
    for mutant in MUTANTS.values():
        assert mutant.breaks
        assert set(mutant.breaks) <= set(LAWS), mutant.name
        assert mutant.operations
        assert set(mutant.operations) <= {o.name for o in CONTRACT}, mutant.name


def test_every_question_has_a_law() -> None:
    assert {f"semantics.{q}" for q in QUESTIONS} == {x for x in LAWS if x.startswith("semantics.")}


def test_every_operation_has_a_reference() -> None:
    assert set(REFERENCE) == set(OPERATIONS)


def test_the_pytorch_backend_provides_every_operation() -> None:
    pytorch = pytest.importorskip("attnspec.backends.pytorch", reason="PyTorch is not installed")
    assert [o.name for o in CONTRACT if not callable(getattr(pytorch, o.name, None))] == []


def test_the_typed_tables_name_every_operation() -> None:
    from attnspec.backends.bases.contract import Table

    assert list(Table.__annotations__) == [o.name for o in sorted(CONTRACT, key=lambda o: CHAPTERS.index(o.chapter))]
    source = inspect.getsource(import_module("attnspec.backends.bases.contract"))
    for operation in CONTRACT:
        line = f"{operation.name}: {operation.protocol.__name__}[Array]"
        assert source.count(f" {line}\n") == 2, f"class Operations and Table both declare {line}"


COLUMNS = {
    "spec": "spec/attnspec/spec/{}.py",
    "laws": "spec/attnspec/spec/laws/{}.py",
    "reference": "reference/attnspec/reference/{}.py",
    "backend": "backends/attnspec/backends/pytorch/{}.py",
    "checks": "conformance/attnspec/conformance/laws/{}.py",
    "mutants": "conformance/attnspec/conformance/mutants/{}.py",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_a_file_in_every_column(chapter: str, column: str) -> None:
    operations = [o for o in OPERATIONS.values() if o.chapter == chapter]
    provided = any(o in CONTRACT for o in operations)
    assert (ROOT / COLUMNS[column].format(chapter)).is_file() == (provided if column == "backend" else bool(operations))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_an_operation_stands_in_the_files_of_its_chapter(operation: Operation) -> None:
    assert operation.protocol.__module__ == f"attnspec.spec.{operation.chapter}"
    assert REFERENCE[operation.name].__module__ == f"attnspec.reference.{operation.chapter}"


# How modules are written ----------------------------------------------------------------------------------------------

LONG = {
    "attnspec.conformance.mutants.attention": "a catalogue: one short function for each mutant",
    "attnspec.conformance.mutants.calling": "a catalogue: one short function for each mutant",
    "attnspec.conformance.running.kill_matrix": "tasks, processes and the printed matrix of one command",
}
"""Modules of more than 400 lines, with the reason."""


def test_modules_are_short_or_say_why_not() -> None:
    long = {m.name for m in ALL if len(m.text.splitlines()) > 400}
    assert long == set(LONG)


def shown(headings: str, doc: str) -> list[str]:
    """Which headings a docstring has, in its order."""
    return re.findall(rf"^({headings}):", doc, re.MULTILINE)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_documented_under_the_same_headings(name: str) -> None:
    protocol, reference = OPERATIONS[name].protocol, REFERENCE[name]
    assert shown("Where|Edges|Errors", inspect.getdoc(protocol) or "") == ["Where", "Edges", "Errors"]
    headings = ["Formula", "Where", "Source", "Edges", "Errors"]
    assert shown("|".join(headings), inspect.getdoc(reference) or "") == headings
    assert OPERATIONS[name].statement.endswith(".")


def undocumented(module: Module) -> list[str]:
    """The public names of a module that have no docstring."""
    found = [] if ast.get_docstring(module.tree) else ["the module"]
    scopes: list[ast.Module | ast.ClassDef] = [module.tree]
    while scopes:
        for node in scopes.pop().body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                overload = any(ast.unparse(d).endswith("overload") for d in node.decorator_list)
                found += [] if overload or ast.get_docstring(node) else [node.name]
                scopes += [node] if isinstance(node, ast.ClassDef) else []
    return found


def test_what_is_public_has_a_docstring() -> None:
    assert {m.name: undocumented(m) for m in ALL if m.public and undocumented(m)} == {}


def test_annotations_are_read_at_run_time() -> None:
    assert [m.name for m in ALL if "__future__.annotations" in m.imports()] == []


def unexplained(module: Module) -> list[int]:
    """The lines on which everything is caught without a reason."""
    lines = module.text.splitlines()
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
            reason = lines[node.lineno - 1].partition("# noqa: BLE001 - ")[2]
            if caught & {"Exception", "BaseException"} and not reason:
                found.append(node.lineno)
    return found


def test_broad_excepts_say_why() -> None:
    assert {m.name: unexplained(m) for m in ALL if unexplained(m)} == {}


def test_nothing_is_left_for_later() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)")
    assert {m.name: pattern.findall(m.text) for m in ALL if pattern.search(m.text)} == {}


def test_no_machine_is_named() -> None:
    written = [*(m.path for m in ALL), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*"), *ROOT.glob("*.*")]
    pattern = re.compile(r"(?<![\w.])/(home|root|tmp|work|opt|Users|private)/|[A-Z]:\\\\|\b(localhost|127\.0\.0\.1)\b")
    found = [p for p in written if p.is_file() and p != ROOT / "tests" / "test_architecture.py"]
    named = {str(p.relative_to(ROOT)): pattern.findall(p.read_text(encoding="utf-8")) for p in found}
    assert {p: hits for p, hits in named.items() if hits} == {}


def test_no_module_hides_behind_a_package_of_its_name() -> None:
    assert [name for name, count in Counter(m.name for m in ALL).items() if count > 1] == []
