"""The reference and the Protocols say the same, and the shapes hold at run time."""

import inspect
import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError, jaxtyped

from attnspec.reference import REFERENCE
from attnspec.spec import OPERATIONS, Operation
from attnspec.spec.contract.shapes import bind, results
from attnspec.spec.contract.tree import flatten

HEADINGS = ["Formula", "Where", "Source", "Edges", "Errors"]


def annotation(of: Any) -> Any:
    """An annotation without its array type: kinds, shape, records, choices, and whether it may be None.

    Only Protocols rename sizes.
    """
    if hasattr(of, "dim_str"):
        return (of.dim_str, *of.dtypes)
    origin, parts = get_origin(of), get_args(of)
    if origin in (Literal, Annotated):
        # What renames sizes says nothing of the function.
        return annotation(parts[0]) if origin is Annotated else parts
    if origin in (Union, UnionType):
        return frozenset(map(annotation, parts))
    return (origin, *map(annotation, parts)) if origin is tuple else origin or of


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_signature_is_the_protocols(operation: Operation) -> None:
    own, contract = inspect.signature(REFERENCE[operation.name]), operation.signature
    assert list(own.parameters) == list(contract.parameters)
    for mine, theirs in zip(own.parameters.values(), contract.parameters.values(), strict=True):
        assert (mine.kind, mine.default) == (theirs.kind, theirs.default)
        assert annotation(mine.annotation) == annotation(theirs.annotation)
    assert annotation(own.return_annotation) == annotation(contract.return_annotation)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_docstring_has_the_headings_and_cites_the_sources(operation: Operation) -> None:
    text = inspect.getdoc(REFERENCE[operation.name]) or ""
    assert re.findall(r"^([A-Z]\w+):", text, re.MULTILINE) == HEADINGS
    assert text.split("\n", 1)[0] == operation.statement
    source = " ".join(text.split("Source: ")[1].split("\nEdges: ")[0].split())
    assert source == "; ".join(map(str, operation.sources)) + "."


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.name)
def test_shapes_hold_at_run_time(operation: Operation, batch: tuple[int, ...], draw: Any) -> None:
    checked = jaxtyped(typechecker=beartype)(REFERENCE[operation.name])
    arguments = draw(operation.name, batch=batch)
    result, again = checked(**arguments), flatten(REFERENCE[operation.name](**arguments))
    binding = bind(operation, arguments)
    for leaf, x in results(operation, result):
        assert type(x) is np.ndarray
        assert x.shape == binding.shape(leaf)
    assert flatten(result).keys() == again.keys()
    assert all(np.array_equal(x, again[path]) for path, x in flatten(result).items())


def test_run_time_check_sees_a_wrong_shape(draw: Any) -> None:
    """The check of the test above does refuse a wrong shape."""
    checked = jaxtyped(typechecker=beartype)(REFERENCE["dot_scores"])
    with pytest.raises((TypeCheckError, BeartypeCallHintViolation)):
        checked(np.ones((2, 3)), np.ones((2, 4)))
