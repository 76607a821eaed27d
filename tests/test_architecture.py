"""Rules for all modules: who imports whom, what belongs to what, how they are written.

A portion is one of the four packages, such as ``spec``. A room is a folder of a portion, such as ``judging``.
"""

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from graphlib import TopologicalSorter
from importlib import import_module
from typing import Any, get_args, get_origin

import pytest
from typing_extensions import get_original_bases

from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants import MUTANTS
from attnspec.reference import REFERENCE
from attnspec.spec import CHAPTERS, LAWS, OPERATIONS, QUESTIONS, Array, Operation
from attnspec.spec.contract.documentation import documentation

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
THIRD_PARTY = {
    "spec": {"numpy", "jaxtyping", "typing_extensions"},
    "reference": {"numpy", "jaxtyping", "typing_extensions", "ml_dtypes"},
    "backends": {
        *("numpy", "jaxtyping", "typing_extensions", "ml_dtypes"),
        *("torch", "triton", "llvmlite", "platformdirs", "jax", "onnx", "onnxruntime"),
    },
    "conformance": {
        *("numpy", "jaxtyping", "typing_extensions", "ml_dtypes"),
        *("hypothesis", "pytest", "rich", "typer", "markdown_it", "math_core", "jinja2", "safetensors"),
        *("matplotlib", "threadpoolctl", "jsonschema"),
    },
}


def forbidden(module: Module) -> list[str]:
    """The imports of a module that its portion may not have."""
    allowed = THIRD_PARTY[module.portion] | sys.stdlib_module_names
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
    concrete = {"pytorch", "torch_native", "jax_native", "onnx_native"}
    for module in modules("backends"):
        imported = {part for name in module.imports() for part in name.split(".") if name.startswith("attnspec.")}
        assert imported & concrete <= set(module.name.split(".")), module.name


@pytest.mark.parametrize("portion", PORTIONS)
def test_the_namespace_has_four_typed_portions(portion: str) -> None:
    assert not (ROOT / portion / "attnspec" / "__init__.py").exists()
    assert not (ROOT / portion / "__init__.py").exists()
    assert (ROOT / portion / "attnspec" / portion / "py.typed").is_file()
    beside = {"__main__.py"} if portion == "conformance" else set()  # `python -m attnspec`
    names = {p.name for p in (ROOT / portion / "attnspec").iterdir()}
    assert names - {"__pycache__"} == {portion} | beside


def loaded_by(module: str) -> set[str]:
    """The modules that are loaded after an import, in a fresh process."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_pytest_plugin_is_light() -> None:
    loaded = loaded_by("attnspec.conformance.plugin")
    assert not loaded & {"numpy", "hypothesis", "jaxtyping", "torch", "rich", "typer"}
    light = {"", ".plugin", ".running", ".running.keys", ".running.settings"}
    assert {n for n in loaded if n.startswith("attnspec.")} == {f"attnspec.conformance{module}" for module in light}


@pytest.mark.parametrize("module", ["attnspec.spec", "attnspec.reference", "attnspec.conformance.cli"])
def test_no_framework_is_loaded_unless_a_backend_needs_it(module: str) -> None:
    assert not {"torch", "jax", "onnx", "onnxruntime", "triton", "llvmlite"} & loaded_by(module)


def importing(portion: str, place: Callable[[str], str]) -> dict[str, set[str]]:
    """For every place of a portion, the other places that its modules import from."""
    prefix, places = f"attnspec.{portion}.", {m.name: place(m.name) for m in modules(portion)}
    graph: dict[str, set[str]] = {where: set() for where in places.values()}
    for m in modules(portion):
        for name in m.imports():
            module = next((x for x in (name, name.rpartition(".")[0]) if x in places), "")
            if module.startswith(prefix):
                graph[places[m.name]] |= {places[module]} - {places[m.name]}
    return graph


@pytest.mark.parametrize("portion", PORTIONS)
def test_modules_import_each_other_in_no_circle(portion: str) -> None:
    graph = importing(portion, str)
    assert portion != "conformance" or "attnspec.conformance.running.settings" in graph["attnspec.conformance.plugin"]
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("portion", PORTIONS)
def test_no_module_imports_the_package_it_stands_in(portion: str) -> None:
    """Only the adapter that forces a path does: it wraps the whole backend, and nothing imports it."""
    upward = {name for name, others in importing(portion, str).items() for x in others if name.startswith(f"{x}.")}
    assert upward <= {"attnspec.backends.pytorch.runtime.paths"}


@pytest.mark.parametrize("portion", PORTIONS)
def test_rooms_and_chapters_import_each_other_in_no_circle(portion: str) -> None:
    graph = importing(portion, lambda name: ".".join(name.split(".")[:3]))
    assert portion != "conformance" or "attnspec.conformance.judging" in graph["attnspec.conformance.laws"]
    TopologicalSorter(graph).prepare()


def room(name: str) -> str:
    """The room of a module of conformance; nothing for the entry points."""
    parts = name.split(".")
    return parts[2] if len(parts) > 3 else ""


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """The places that are imported by a place, or by what it imports."""
    return set[str]().union(*({place} | reached(graph, place) for place in graph[start]))


def test_the_rooms_of_conformance_are_drawn_as_they_import_each_other() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    pictures = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    drawn_edges = [tuple(re.findall(r"(\w+) --> (\w+)", picture)) for picture in pictures]
    graph = {place: others - {""} for place, others in importing("conformance", room).items() if place}
    minimal_edges = {
        (place, other)
        for place, others in graph.items()
        for other in others
        if not any(other in reached(graph, between) for between in others)
    }
    assert set(drawn_edges[1]) == minimal_edges
    portions = {(portion, other) for portion, others in OURS.items() for other in others - {portion}}
    assert set(drawn_edges[0]) == portions - {("conformance", "spec")}


# What belongs to what -------------------------------------------------------------------------------------------------


def test_every_law_has_a_check() -> None:
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
    laws = {q.law for q in QUESTIONS.values()}
    assert laws <= set(LAWS)
    assert {x for x in LAWS if x.startswith("semantics.")} == laws - {"operation.rejection"}


def test_every_operation_has_a_reference() -> None:
    assert set(REFERENCE) == set(OPERATIONS)


def test_the_pytorch_backend_provides_every_operation() -> None:
    pytorch = pytest.importorskip("attnspec.backends.pytorch", reason="PyTorch is not installed")
    assert [o.name for o in CONTRACT if not callable(getattr(pytorch, o.name, None))] == []


def protocol_of(hint: Any) -> Any:
    """The Protocol that an entry of a typed table names, for arrays of any kind."""
    assert get_args(hint) == (Array,)
    return get_origin(hint)


def test_the_typed_tables_name_every_operation_with_its_protocol() -> None:
    from attnspec.backends.bases.contract import Operations, Table

    expected = {o.name: o.protocol for o in CONTRACT}
    methods = {name: hint for c in Operations.__mro__ for name, hint in vars(c).get("__annotations__", {}).items()}
    table = Table.__annotations__
    for place, hints in (("a class of `Operations`", methods), ("`Table`", table)):
        named = {name: protocol_of(hint) for name, hint in hints.items()}
        wrong = sorted(name for name in expected.keys() | named.keys() if named.get(name) != expected.get(name))
        assert not wrong, (
            f"expected in {place} (of its chapter in spec/, or of bases/contract.py) each operation with its Protocol; "
            f"amend {wrong}"
        )
    names = list(table)
    moved = next((name for name, other in zip(expected, names, strict=True) if name != other), "")
    assert not moved, (
        f"bases/contract.py: expected `Table` in the order of the specification: {moved!r} stands elsewhere"
    )


def in_small_letters(name: str) -> str:
    """``LSTMCell`` as ``lstm_cell``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_an_operation_has_the_name_of_its_class_in_small_letters(operation: Operation) -> None:
    assert operation.name == in_small_letters(operation.protocol.__name__)
    assert OPERATIONS[operation.name] is operation


def test_class_names_in_small_letters() -> None:
    names = {"GRU": "gru", "LSTMCell": "lstm_cell", "DotScores": "dot_scores", "Seq2SeqLoss": "seq2seq_loss"}
    assert {name: in_small_letters(name) for name in names} == names


def is_record(c: type) -> bool:
    """True for a frozen dataclass or a NamedTuple, which may hold parameters or states."""
    frozen = is_dataclass(c) and vars(c)["__dataclass_params__"].frozen
    return frozen or (issubclass(c, tuple) and hasattr(c, "_fields"))


WITH_OPERATIONS = tuple(dict.fromkeys(o.chapter for o in OPERATIONS.values()))


@pytest.mark.parametrize("chapter", WITH_OPERATIONS)
def test_a_chapter_exports_its_protocols_its_records_and_two_tables(chapter: str) -> None:
    from attnspec.backends.bases.contract import Operations, Table

    module = import_module(f"attnspec.spec.{chapter}")
    classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    public = {c for c in classes if not c.__name__.startswith("_")}
    composed = {get_origin(base) for base in (*get_original_bases(Operations), *get_original_bases(Table))}
    protocols = {o.protocol for o in OPERATIONS.values() if o.chapter == chapter}
    provided = [o.name for o in CONTRACT if o.chapter == chapter]
    assert sorted(module.__all__) == sorted(c.__name__ for c in public)
    assert protocols <= public
    assert all(is_record(c) for c in public - protocols - composed)
    assert [list(vars(c)["__annotations__"]) for c in public & composed] == [provided] * (2 if provided else 0)


@pytest.mark.parametrize("chapter", WITH_OPERATIONS)
def test_a_chapter_exports_its_operations(chapter: str) -> None:
    operations = {o.name: REFERENCE[o.name] for o in OPERATIONS.values() if o.chapter == chapter}
    reference = import_module(f"attnspec.reference.{chapter}")
    assert sorted(reference.__all__) == sorted(operations)
    assert {name: getattr(reference, name) for name in operations} == operations


COLUMNS = {
    "spec": "spec/attnspec/spec/{}",
    "laws": "spec/attnspec/spec/laws/{}",
    "reference": "reference/attnspec/reference/{}",
    "backend": "backends/attnspec/backends/pytorch/{}",
    "checks": "conformance/attnspec/conformance/laws/{}",
    "mutants": "conformance/attnspec/conformance/mutants/{}",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_a_file_in_every_column(chapter: str, column: str) -> None:
    operations = [o for o in OPERATIONS.values() if o.chapter == chapter]
    provided = any(o in CONTRACT for o in operations)
    place = ROOT / COLUMNS[column].format(chapter)
    # The chapter `kernels` of the backend is a package.
    exists = place.with_suffix(".py").is_file() or (chapter == "kernels" and (place / "__init__.py").is_file())
    assert exists == (provided if column == "backend" else bool(operations))


BESIDE_CHAPTERS = {
    "spec/attnspec/spec": {"contract", "laws", "lectures", "errata.py"},
    "reference/attnspec/reference": {"budget", "defining"},
    "backends/attnspec/backends/pytorch": {"distributed", "kernels", "nn", "runtime"},
}
"""Modules and packages beside the chapters of a column; all others go into one of these."""
WITHOUT_CHAPTERS = {
    "backends/attnspec/backends": {"bases", "pytorch", "torch_native", "onnx_native", "jax_native.py"},
    "conformance/attnspec/conformance": {
        *("cli.py", "plugin.py", "test_conformance.py"),
        *("explaining", "harness", "inputs", "judging", "laws", "matrix", "mutants"),
        *("rediscovered", "remote", "reporting", "running", "templates", "variants"),
    },
}
"""Modules and packages of folders without chapters: backends, entry points, rooms."""


def entries_of(folder: str) -> set[str]:
    parts = {p for p in (ROOT / folder).iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))}
    return {p.name for p in parts} - {"__init__.py"}


@pytest.mark.parametrize("folder", BESIDE_CHAPTERS)
def test_the_top_of_a_column_holds_chapters_and_few_rooms(folder: str) -> None:
    assert entries_of(folder) - {f"{chapter}.py" for chapter in CHAPTERS} == BESIDE_CHAPTERS[folder]


@pytest.mark.parametrize("folder", WITHOUT_CHAPTERS)
def test_the_top_of_a_portion_holds_rooms_and_entry_points(folder: str) -> None:
    assert entries_of(folder) == WITHOUT_CHAPTERS[folder]


def exported(name: str) -> set[str]:
    """Public names of a module: ``__all__``, else those that it defines or imports as themselves."""
    (module,) = (m for m in ALL if m.name == name)
    names: list[str] = []
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names += [a.name for a in node.names if a.asname == a.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [ast.unparse(target) for target in targets]
            if names[-1] == "__all__" and node.value is not None:
                return set(ast.literal_eval(node.value))
    return {name for name in names if not name.startswith("_")}


def star_imports(name: str) -> set[str]:
    """The modules of which a module exports everything that they do."""
    (module,) = (m for m in ALL if m.name == name)
    return {x.removesuffix(".*") for x in module.imports() if x.endswith(".*")}


def name_set(text: str) -> set[str]:
    return set(text.split())


IMPORTED = {
    "attnspec.spec": name_set(
        """VERSION OPERATIONS CHAPTERS LAWS QUESTIONS ERRATA Operation Law Erratum laws operation
        Array Axis Role Kind Dim Leaf Option Branch bind ShapeError
        Backend Converts Differentiates implements Limits Semantics Precision precision Quantized"""
    ),
    "attnspec.reference": name_set("REFERENCE arithmetic choice choosing defines name overridable two_point_design"),
    "attnspec.backends.bases.torch": name_set(
        "TorchBackend default_device devices free_memory from_numpy gradients modes pullback to_numpy"
    ),
    "attnspec.backends.bases.contract": name_set("Operations Table"),
    "attnspec.backends.bases.shapes": name_set("Check"),
    "attnspec.backends.pytorch.runtime.forcing": name_set("PATHS chosen forced forcing"),
    "attnspec.conformance": name_set("BackendError ConformanceSuite call judge load replay suggest_inputs tolerance"),
}
"""Names that users import, beside the exports of chapters. A change needs a change here."""


@pytest.mark.parametrize("name", IMPORTED)
def test_users_import_exactly_these_names(name: str) -> None:
    assert exported(name) == IMPORTED[name]
    module = import_module(name)
    assert [x for x in IMPORTED[name] if not hasattr(module, x)] == []


@pytest.mark.parametrize("column", ["attnspec.spec", "attnspec.reference", "attnspec.backends.pytorch"])
def test_a_column_exports_what_its_chapters_do(column: str) -> None:
    provided = {o.chapter for o in CONTRACT} if column.endswith("pytorch") else set(WITH_OPERATIONS)
    if column.endswith("pytorch"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    assert star_imports(column) == {f"{column}.{chapter}" for chapter in provided}
    module = import_module(column)
    for chapter in provided:
        names = import_module(f"{column}.{chapter}").__all__
        assert [x for x in names if not hasattr(module, x)] == []


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_an_operation_stands_in_the_files_of_its_chapter(operation: Operation) -> None:
    assert operation.protocol.__module__ == f"attnspec.spec.{operation.chapter}"
    assert REFERENCE[operation.name].__module__ == f"attnspec.reference.{operation.chapter}"


# How modules are written ----------------------------------------------------------------------------------------------

ADAPTERS = {"jax_native": 120}
"""Adapters of other libraries in one module, with the most lines it may have."""


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_short(name: str) -> None:
    (module,) = (m for m in modules("backends") if m.name == f"attnspec.backends.{name}")
    assert len(module.text.splitlines()) <= ADAPTERS[name]


def headings_in(headings: str, doc: str) -> list[str]:
    """The headings of a docstring, in its order."""
    return re.findall(rf"^({headings}):", doc, re.MULTILINE)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_documented_under_the_same_headings(name: str) -> None:
    protocol, reference = OPERATIONS[name].protocol, REFERENCE[name]
    headings = ["Formula", "Where", "Source", "Edges", "Errors"]
    own = headings_in("|".join(["Domain", *headings]), inspect.getdoc(protocol) or "")
    assert own == [h for h in ("Where", "Domain", "Edges", "Errors") if h in own]
    for whole in (documentation(OPERATIONS[name]), inspect.getdoc(reference) or ""):
        assert headings_in("|".join(headings), whole) == headings
    assert OPERATIONS[name].statement.endswith(".")


def undocumented(module: Module) -> list[str]:
    """The public names of a module that have no docstring."""
    names = [] if ast.get_docstring(module.tree) else ["the module"]
    scopes: list[ast.Module | ast.ClassDef] = [module.tree]
    while scopes:
        for node in scopes.pop().body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                overload = any(ast.unparse(d).endswith("overload") for d in node.decorator_list)
                names += [] if overload or ast.get_docstring(node) else [node.name]
                scopes += [node] if isinstance(node, ast.ClassDef) else []
    return names


def test_every_public_name_has_a_docstring() -> None:
    assert {m.name: undocumented(m) for m in ALL if m.public and undocumented(m)} == {}


def test_annotations_are_read_at_run_time() -> None:
    assert [m.name for m in ALL if "__future__.annotations" in m.imports()] == []


def broad_excepts(module: Module) -> list[int]:
    """Lines of handlers that catch every exception and give no reason."""
    lines = module.text.splitlines()
    line_numbers = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"BaseException"}
            reason = lines[node.lineno - 1].partition("# noqa: BLE001 - ")[2]
            if caught & {"Exception", "BaseException"} and not reason:
                line_numbers.append(node.lineno)
    return line_numbers


def test_broad_excepts_say_why() -> None:
    assert {m.name: broad_excepts(m) for m in ALL if broad_excepts(m)} == {}


PRIVATE = "attnspec.backends.pytorch.runtime.private"
PRIVATE_NAMES = {
    *("_are_functorch_transforms_active", "_len_torch_dispatch_stack", "_current_level", "_dynamo_marked_constant"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
}
"""Private names of PyTorch that the backends of PyTorch use, all in the module ``PRIVATE``."""


def private_names(module: Module) -> set[str]:
    """Private attributes of others that a module reads, and the private names among its strings.

    Methods of named tuples are public, and so are for a subclass those of its base.
    """
    public, own = {"_replace", "_fields", "_asdict", "_make", "_C"}, ("self", "cls", "super()")
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr) and ast.unparse(node.value) not in own:
            names.add(node.attr)
        if isinstance(node, ast.Constant) and re.fullmatch(r"_scaled_dot\w+|torch\.[\w.]*\._\w+", str(node.value)):
            names.add(str(node.value))
    return names - public


def test_private_names_of_pytorch_stand_in_one_module() -> None:
    # `torch_native` judges what is private, too, and says so where it does
    ours = [m for m in ALL if m.name.startswith(("attnspec.backends.pytorch", "attnspec.backends.bases"))]
    names_by_module = {m.name: private_names(m) for m in ours}
    assert names_by_module.pop(PRIVATE) == PRIVATE_NAMES
    assert {name: names for name, names in names_by_module.items() if names} == {}


def test_sources_contain_no_todo_comments_or_stubs() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError\(\)")
    assert {m.name: pattern.findall(m.text) for m in ALL if pattern.search(m.text)} == {}


def test_no_machine_is_named() -> None:
    written = [
        *(m.path for m in ALL),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "docs").glob("*"),
        *ROOT.glob("[!.]*.*"),
    ]
    pattern = re.compile(r"(?<![\w.])/(home|root|tmp|work|opt|Users|private)/|[A-Z]:\\\\|\b(localhost|127\.0\.0\.1)\b")
    files = [p for p in written if p.is_file() and p != ROOT / "tests" / "test_architecture.py"]
    named = {str(p.relative_to(ROOT)): pattern.findall(p.read_text(encoding="utf-8")) for p in files}
    assert {p: hits for p, hits in named.items() if hits} == {}


def test_no_module_hides_behind_a_package_of_its_name() -> None:
    assert [name for name, count in Counter(m.name for m in ALL).items() if count > 1] == []
