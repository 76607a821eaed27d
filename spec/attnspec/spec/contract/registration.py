"""Decorator ``@operation``, which registers a Protocol as an operation.

The decorator reads the jaxtyping annotations of the Protocol's ``__call__``. Its own arguments add facts that
annotations cannot express. It registers an :class:`~attnspec.spec.contract.operation.Operation`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attnspec.spec.contract.annotations import InvalidDeclaration, names, read
from attnspec.spec.contract.axes import GLOSSARY, Axis, ScoreEffect
from attnspec.spec.contract.checking import check
from attnspec.spec.contract.operation import CHAPTERS, OPERATIONS, Operation, register
from attnspec.spec.contract.sources import Citation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option

P = TypeVar("P", bound=type)


def operation(
    name: str,
    *,
    chapter: str,
    formula: str,
    sources: Sequence[Citation],
    reference_only: bool = False,
    axes: Mapping[str, Axis] | None = None,
    pooled: str = "",
    linear: str = "",
    scores_scale_with: Mapping[str, float] | None = None,
    causal: str = "",
    nonempty: str = "",
    ordered: str = "",
    features: str = "",
    results: str = "",
    lengths: Mapping[str, str] | None = None,
    indices: Mapping[str, str] | None = None,
    selections: Mapping[str, str] | None = None,
    cumulative: Mapping[str, str] | None = None,
    generated_below: Mapping[str, int] | None = None,
    generated_within: Mapping[str, float | tuple[float, float]] | None = None,
    parts: Mapping[str, ScoreEffect] | None = None,
    wider: str = "",
    trial_values: Mapping[str, tuple[Any, ...]] | None = None,
    chosen: str = "",
) -> Callable[[P], P]:
    """Register a Protocol as the operation ``name``.

    - ``reference_only``: no backend provides it; `rnn_complexity` is an example.
    - ``axes``: meanings of sizes that differ from the glossary.
    - ``pooled``: the argument that each result averages, such as `value`.
    - ``linear``: arguments in each of which the first result is linear.
    - ``scores_scale_with``: exponents p by argument; multiplying every argument by its cᵖ multiplies the scores by c.
    - ``causal``: one or two sizes; results along the first do not depend on later positions along the last. A flag
      `causal` implies it.
    - ``nonempty``: sizes of positions or layers that must not be 0, such as `depth` of `stacked_rnn`.
    - ``ordered``: options under which the order of positions matters, such as `window`.
    - ``features``: keyword arguments, their choices (``norm=pre``) and results that a backend may lack.
    - ``results``: names of the arrays of a tuple.
    - ``lengths``: integer arrays of lengths, each with the size whose positions it limits.
    - ``indices``: integer arrays, each with the size that bounds it, such as tokens with the vocabulary.
    - ``selections``: integer arrays whose rows name different positions of a size, or none by −1, each with that size.
    - ``cumulative``: integer vectors of boundaries between packed sequences, from 0 on and never falling, each with the
      packed size.
    - ``generated_below``: integer arrays without bounds, each with the bound for examples.
    - ``generated_within``: float arrays in which arbitrary numbers make a recurrence overflow, each with the least and
      the largest number of examples, or with the largest norm of a row.
    - ``parts``: effects of options and optional arrays on scores.
    - ``wider``: arguments and results that kernels keep in float32 beside arrays of 16 bits.
    - ``trial_values``: values to try an option with.
    - ``chosen``: integer results that select the best of several candidates, such as the tokens of `greedy_decode`.
      Where rounding errors decide between candidates, either choice is correct; a float result says how good it is.
    """
    if chapter not in CHAPTERS:
        raise ValueError(f"operation {name}: chapter: expected one of {', '.join(CHAPTERS)}; got {chapter!r}")
    facts: dict[str, Any] = {
        "chapter": chapter,
        "formula": formula,
        "sources": tuple(sources),
        "reference_only": reference_only,
        "axes": axes or {},
        "pooled": pooled,
        "linear": tuple(linear.split()),
        "scores_scale_with": scores_scale_with or {},
        "causal": tuple(causal.split()),
        "nonempty": tuple(nonempty.split()),
        "ordered": tuple(ordered.split()),
        "features": tuple(features.split()),
        "results": tuple(results.split()),
        "lengths": lengths or {},
        "indices": indices or {},
        "selections": selections or {},
        "cumulative": cumulative or {},
        "generated_below": generated_below or {},
        "generated_within": generated_within or {},
        "parts": parts or {},
        "wider": tuple(wider.split()),
        "trial_values": trial_values or {},
        "chosen": tuple(chosen.split()),
    }

    def registered(protocol: P) -> P:
        try:
            declared = _read_protocol(protocol, name, facts)
            if not reference_only:
                check(declared)
        except InvalidDeclaration as error:
            raise InvalidDeclaration(f"{protocol.__name__}: {error}") from None
        register(declared)
        return protocol

    return registered


CAUSAL = "causal"
"""Name of the causal flag, the same in every operation."""


def _read_protocol(protocol: Any, name: str, facts: Mapping[str, Any]) -> Operation:
    """Build the operation that a Protocol declares; :class:`InvalidDeclaration` says what is wrong."""
    if not getattr(protocol, "_is_protocol", False) or len(protocol.__parameters__) != 1 or not protocol.__doc__:
        raise InvalidDeclaration("expected a Protocol[Array] with a docstring")
    if name in OPERATIONS or name != name.lower() or name.replace("_", "") != protocol.__name__.lower():
        raise InvalidDeclaration(f"name: expected the class's name in snake_case, not yet used; got {name!r}")
    signature = inspect.signature(protocol.__call__)
    parameters = list(signature.parameters.values())[1:]
    annotations = {p.name: p.annotation for p in parameters} | {"result": signature.return_annotation}
    if "result" in [p.name for p in parameters]:
        raise InvalidDeclaration("result: expected another name for an argument")
    size_names = [n for top, a in annotations.items() for n in names(a, top, deep=top == "result")]
    meanings = {**GLOSSARY, **facts["axes"]}
    scope = {n: n for n in (*size_names, *(p.name for p in parameters if p.name in meanings))}
    nodes = {n: read(a, n, scope) for n, a in annotations.items()}
    result = _named(nodes.pop("result"), iter(facts["results"]))
    parts = [
        replace(n, kind=Kind.SIZE) if isinstance(n, Option) and n.kind is Kind.COUNT and n.path in meanings else n
        for n in nodes.values()
    ]
    declared = Operation(
        name=name,
        protocol=protocol,
        call=Branch("", dict, tuple(nodes), tuple(parts)),
        result=result,
        defaults={p.name: p.default for p in parameters if p.default is not p.empty},
        keyword_only=frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
        **facts,
    )
    if CAUSAL not in nodes or declared.cumulative or not declared.sizes_of(Axis.KEY):
        return declared  # packed sequences share one axis, paged caches have no key axis: neither axis order is causal
    pair = declared.causal or (*declared.sizes_of(Axis.QUERY)[:1], *declared.sizes_of(Axis.KEY)[-1:])
    return replace(declared, causal=tuple(dict.fromkeys(pair)), ordered=(CAUSAL, *declared.ordered))


def _named(result: Node, result_names: Iterator[str]) -> Node:
    """Rename the arrays of a result."""
    if isinstance(result, Leaf):
        return replace(result, path=next(result_names, result.path))
    if isinstance(result, Branch):
        return replace(result, nodes=tuple(_named(n, result_names) for n in result.nodes))
    return result
