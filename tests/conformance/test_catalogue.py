"""The texts that `attnspec list` and `attnspec show` print."""

import inspect
import os
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from attnspec.conformance.cli import TEXT_WIDTH, app
from attnspec.conformance.reporting.catalogue import described, names
from attnspec.spec import LAWS, OPERATIONS, QUESTIONS
from attnspec.spec.contract.documentation import HEADINGS, sections, where_list, where_notes
from attnspec.spec.contract.precision import CLASSES
from attnspec.spec.contract.semantics import DeclaredSemantics
from attnspec.spec.contract.sources import SOURCES


def declarations(text: str) -> list[str]:
    """Python literals of all declarations of semantics in a text."""
    parts = text.split("`semantics = ")[1:]
    return [part.split("`")[0] for part in parts]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_shows_its_choices_and_valid_declarations(name: str) -> None:
    question = QUESTIONS[name]
    text = described(name).markup
    assert text == described(question.law).markup
    assert f"`{question.normative}` (normative)" in text
    assert [c for c in question.choices if f"`{c}`" not in text] == []
    for_all_operations, for_one_operation = (eval(d) for d in declarations(text))
    (operation,) = for_one_operation
    assert question.concerns(OPERATIONS[operation])
    declared = DeclaredSemantics.of(for_all_operations, OPERATIONS)
    assert getattr(declared[operation], name) == question.choices[1]
    declared = DeclaredSemantics.of(for_one_operation, OPERATIONS)
    assert getattr(declared[operation], name) == question.choices[1]
    assert getattr(declared["no such operation"], name) == question.normative


def test_a_chapter_shows_its_operations_and_laws() -> None:
    text = described("attention").markup
    chapters = {o.name: o.chapter for o in OPERATIONS.values()} | {x.id: x.chapter for x in LAWS.values()}
    assert {name for name in chapters if f"`{name}`" in text} == {n for n, c in chapters.items() if c == "attention"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_shows_its_edge_cases_and_sources(name: str) -> None:
    text = described(name).markup
    (edges,) = (p for p in text.split("\n\n") if p.startswith("Edges: "))
    assert edges == f"Edges: {sections(OPERATIONS[name])['Edges']}"
    for citation in OPERATIONS[name].sources:
        assert f"- {citation.source}: {SOURCES[citation.source].title}" in text


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_shows_its_documentation_under_its_headings(name: str) -> None:
    operation, text = OPERATIONS[name], described(name).markup
    assert tuple(re.findall(rf"^({'|'.join(HEADINGS)}):", text, re.MULTILINE)) == HEADINGS
    assert text.startswith(f"## {name}\n\n{operation.statement}\n\nCall: `{name}(")
    assert f"`\n\nFormula:\n\n```math\n{operation.formula}\n```\n\nWhere:" in text
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == [entry.path for entry in where_list(operation)]
    assert [row[1].strip("`") for row in rows] == [entry.values for entry in where_list(operation)]
    assert all(note.replace("*", r"\*") in text for note in where_notes(operation))


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_shows_its_signature(name: str) -> None:
    parameters = list(inspect.signature(OPERATIONS[name].protocol.__call__).parameters.values())[1:]
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    assert f"Call: `{name}{bare}`" in described(name).markup


def test_stars_in_shapes_are_printed() -> None:
    with Path(os.devnull).open("w") as sink:
        console = Console(record=True, width=TEXT_WIDTH, file=sink)
        console.print(described("multi_head_attention"))
    printed = console.export_text()
    assert "(*batch, n, d_q)" in printed
    assert "(p_o, heads*p_v)" in printed
    assert "*batch: batch dimensions" in printed


def test_every_name_is_unique_and_has_a_page() -> None:
    assert len(set(names())) == len(names())
    assert all(described(name).markup for name in names())


def test_no_page_is_cut_at_its_width() -> None:
    with Path(os.devnull).open("w") as sink:
        for name in names():
            page = described(name)
            console = Console(record=True, width=TEXT_WIDTH, file=sink)
            console.print(page)
            assert console.export_text().count("…") == page.markup.count("…"), name


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    return done.output


def test_lists_hold_every_question_and_precision_class() -> None:
    assert [name for name in QUESTIONS if name not in printed("list", "questions")] == []
    assert [name for name in CLASSES if name not in printed("list", "precisions")] == []


def test_the_operations_are_counted_once() -> None:
    judged = sum(not o.reference_only for o in OPERATIONS.values())
    counts = f"{len(OPERATIONS)} operations: {judged} that a backend may provide, {len(OPERATIONS) - judged} of the"
    assert counts in " ".join(printed("list", "operations").split())


@pytest.mark.parametrize("name", CLASSES)
def test_a_precision_class_shows_how_to_declare_it(name: str) -> None:
    text = " ".join(printed("show", name).split())
    (declared,) = re.findall(r"precision = (\{.*?\})", text)
    assert eval(declared) == {CLASSES[name].dtype: name}
    assert "accumulation 2" in text


def test_a_nested_result_is_shown_as_nested() -> None:
    assert "Result: (states, (h, c))" in printed("show", "lstm")
