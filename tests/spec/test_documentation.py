"""The documentation of operations: composed once, complete, and nothing in it pasted."""

import ast
import inspect
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Protocol

import pytest
from jaxtyping import Bool, Float, Int

from attnspec.reference import REFERENCE
from attnspec.spec import CHAPTERS, OPERATIONS, Axis, Operation, implements
from attnspec.spec.contract.annotations import Array, Array_co, sizes
from attnspec.spec.contract.documentation import (
    HEADINGS,
    WRITTEN,
    documentation,
    meanings,
    sections,
    where_list,
    where_notes,
)
from attnspec.spec.contract.operation import _OPERATIONS
from attnspec.spec.contract.registration import operation

ROOT = Path(__file__).parents[2]
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
FILES = [
    path
    for chapter in CHAPTERS
    for path in (ROOT / f"spec/attnspec/spec/{chapter}.py", ROOT / f"reference/attnspec/reference/{chapter}.py")
    if path.exists()
]


def chapter_doc(operation: Operation) -> str:
    return import_module(operation.protocol.__module__).__doc__ or ""


@every_operation
def test_the_headings_stand_in_their_order_and_the_sources_are_cited(operation: Operation) -> None:
    text = documentation(operation, "Its own words.\n\nAnd more of them.")
    assert text.startswith(f"{operation.statement}\n\nIts own words.\n\nAnd more of them.\n\nFormula: ")
    assert tuple(re.findall(r"^([A-Z]\w+):", text, re.MULTILINE)) == HEADINGS
    parts = re.split(rf"^(?:{'|'.join(HEADINGS)}): ", text, flags=re.MULTILINE)[1:]
    assert all(part.strip() for part in parts)
    assert " ".join(parts[2].split()) == "; ".join(map(str, operation.sources)) + "."


@every_operation
def test_protocols_use_no_other_headings(operation: Operation) -> None:
    for doc in (operation.protocol.__doc__, chapter_doc(operation)):
        used = re.findall(r"^\s*([A-Z]\w+): ", (doc or "").partition("\n")[2], re.MULTILINE)
        assert used == [heading for heading in WRITTEN if heading in used]


@every_operation
def test_the_where_list_has_every_argument_and_result(operation: Operation) -> None:
    listed = {e.path.replace("[0]", "[:]") for e in where_list(operation)} | {e.path for e in where_list(operation)}
    assert listed >= {leaf.path for leaf in (*operation.leaves, *operation.outputs)} | {*operation.call.names}


@every_operation
def test_every_size_of_a_where_list_has_a_meaning(operation: Operation) -> None:
    shapes = [re.findall(r"[a-z]\w*", e.values) for e in where_list(operation) if e.values.startswith("(")]
    named = {size for shape in shapes for size in shape} - {"batch"}
    assert {size for size in named if not meanings(operation).get(size)} <= {"coordinates"}
    explained = " ".join(where_notes(operation))
    assert all(re.search(rf"\b{size}\b", explained) for size in named)


@every_operation
def test_edges_of_a_chapter_reach_its_operations(operation: Operation) -> None:
    chapter_edges = chapter_doc(operation).partition("Edges: ")[2].partition("\n\n")[0]
    first = " ".join(chapter_edges.split()).partition(". ")[0]
    if first.startswith("As in") and not operation.only_weighs_keys:
        assert "Key j is attendable" not in sections(operation)["Edges"]
        return
    attendable = "Key j is attendable where" if operation.query_size is None else "Key j is attendable for query i"
    assert re.sub(r"^As in `\w+`\.?", attendable, first) in sections(operation)["Edges"]
    assert operation.query_size is not None or not re.search(r"\bquery\b", sections(operation)["Edges"])


def test_sentences_about_what_an_operation_lacks_are_left_out() -> None:
    edges = {name: sections(OPERATIONS[name])["Edges"] for name in OPERATIONS}
    for name in ("dot_product_attention", "multi_head_attention"):
        assert "With `causal`, j ≤ i must hold as well. If n ≠ `m`, `causal` aligns" in edges[name]
    assert "`causal`" not in edges["cross_attention"] + edges["bahdanau_context"] + edges["nadaraya_watson"]
    assert "`m` = 0" not in edges["self_attention"]
    assert "`n` = 0" not in edges["bahdanau_context"] + edges["padding_mask"]
    assert "As in" not in " ".join(edges.values())


def test_sentences_about_fields_are_for_results_that_have_them() -> None:
    notes = {name: " ".join(where_notes(OPERATIONS[name])) for name in ("convolution", "rnn_complexity")}
    assert "`multiply_adds`" in notes["rnn_complexity"]
    assert "`maximum_path_length`" not in notes["convolution"]
    assert "units of `x` × `w`" in notes["convolution"]
    assert "× `w`" not in notes["rnn_complexity"]


def docstrings(source: str) -> list[str]:
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return [doc for n in nodes if (doc := ast.get_docstring(n))]


def pasted(sources: list[str], least: int = 8) -> set[str]:
    """Sentences of at least ``least`` words that stand more than once in docstrings."""
    seen: set[str] = set()
    twice: set[str] = set()
    for doc in (doc for source in sources for doc in docstrings(source)):
        text = re.sub(rf"(?:^|\n)\s*(?:{'|'.join(WRITTEN)}): ", ". ", doc)
        for sentence in re.split(r"[.:;](?:\s+|$)|\n\s*\n", text):
            normalised = " ".join(re.findall(r"\w+", sentence)).lower()
            if len(normalised.split()) >= least:
                (twice if normalised in seen else seen).add(normalised)
    return twice


def test_no_sentence_is_pasted() -> None:
    assert pasted([path.read_text(encoding="utf-8") for path in FILES]) == set()


def test_a_pasted_sentence_is_found() -> None:
    written = (
        "def f():\n    '''One.\n\n    Edges: A row without keys that may be attended to\n    gives 0.\n    '''\n"
        "class G:\n    '''Two. A row without keys that may be attended to gives 0.'''\n"
    )
    source = FILES[0].read_text(encoding="utf-8")
    assert pasted([source, written]) == {"a row without keys that may be attended to gives 0"}


# Trees ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell(Generic[Array]):
    """Weights of one layer."""

    w: Float[Array, "f d"]
    bias: Float[Array, " f"] | None


@pytest.fixture
def stack() -> Any:
    """An operation over layers, with everything that a where-list can have."""

    @operation(
        "stack",
        chapter="attention",
        formula="y",
        sources=OPERATIONS["dot_scores"].sources,
        axes={"t": Axis.KEY | Axis.TIME},
        results="states final",
        lengths={"lengths": "t"},
        features="norm=pre final",
    )
    class Stack(Protocol[Array]):
        """Several layers."""

        def __call__(
            self,
            x: Float[Array, "*batch t h"],
            layers: Annotated[tuple[Cell[Array], ...], sizes(count="depth", d=("h", "2*h"), f="h")],
            lengths: Int[Array, "*batch"],
            *,
            mask: Bool[Array, "*batch t"] | None = None,
            norm: Literal["pre", "post"] = "post",
        ) -> tuple[Float[Array, "*batch t h"], Float[Array, "*batch h"]]: ...

    yield Stack
    del _OPERATIONS["stack"]


def test_trees_are_listed_by_path(stack: Any) -> None:
    text = documentation(OPERATIONS["stack"])
    assert text.partition("Where: ")[2].partition("\nSource")[0].split("\n       ") == [
        "x (*batch, t, h)",
        "layers, a tuple of length depth",
        "layers[0], record Cell",
        "layers[0].w (h, h)",
        "layers[0].bias (h,), optional",
        "layers[1:], record Cell",
        "layers[1:].w (h, 2*h)",
        "layers[1:].bias (h,), optional",
        "lengths (*batch,), integers in 0..t",
        "mask (*batch, t), boolean, True = may attend, keyword-only, optional",
        "norm, 'pre' or 'post', keyword-only, 'post' if not given, a backend may lack 'pre'",
        "states (*batch, t, h), result",
        "final (*batch, h), result, a backend may lack it",
        "*batch: batch dimensions; t: keys, time steps; h: hidden units; depth: layers",
    ]
    assert "\nEdges: none.\n" in text
    assert "lengths outside of 0..t" in text
    assert "TypeError for arguments of another kind or structure or another norm." in " ".join(
        documentation(OPERATIONS["stack"], misfit="ShapeError", kind="TypeError").split()
    )


# Who shows it ---------------------------------------------------------------------------------------------------------


@every_operation
def test_the_reference_adds_its_own_words(operation: Operation) -> None:
    public = REFERENCE[operation.name]
    own = inspect.getdoc(inspect.unwrap(public)) or ""
    assert own
    assert not re.search(rf"^(?:{'|'.join(HEADINGS)}):", own, re.MULTILINE)
    expected = documentation(operation, own, misfit="ShapeError", kind="TypeError")
    assert inspect.getdoc(public) == expected


def test_a_function_of_a_backend_shows_the_same(stack: Any) -> None:
    def function() -> None:
        """Its own words."""

    def silent() -> None:
        pass

    for written in (function, silent):
        own = written.__doc__
        implements(stack[int])(written)
        assert written.__doc__ == documentation(OPERATIONS["stack"], own)
        implements(stack[int])(written)
        assert written.__doc__ == documentation(OPERATIONS["stack"], own)


def test_a_protocol_that_is_no_operation_gives_its_docstring() -> None:
    class Other(Protocol[Array_co]):
        """Another contract."""

        def __call__(self) -> Array_co: ...

    def function() -> int:
        """Its own words."""
        return 0

    implements(Other[int])(function)
    assert function.__doc__ == "Its own words.\n\nAnother contract."
