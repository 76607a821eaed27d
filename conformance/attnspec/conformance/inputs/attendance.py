"""Keys that each query may attend to, by mask, causal flag, window and lengths."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, keep, take
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.semantics import Semantics
from attnspec.spec.contract.tree import Kind, Leaf

NORMATIVE = Semantics()
"""The choices of a backend that declares none."""

LARGEST_SQUARE = 16
"""Most queries and keys of a square mask. Examples of one query may have many keys."""


def mask_shape(arguments: Arguments, keys: str | None = None) -> tuple[int, ...]:
    """The full shape of the mask for ``keys``, by default the attended keys.

    It is (*batch, n, m), or (*batch, m) for a mask that is the same for every query.
    """
    operation = arguments.operation
    return arguments.binding.shape(operation.masks[keys or operation.key_size or ""])


def mask_encodings(arguments: Arguments, keys: str) -> dict[str, tuple[int, ...]]:
    """Shapes of a mask for ``keys``, by name of the encoding: see ``ENCODINGS``."""
    shape, core = mask_shape(arguments, keys), arguments.operation.masks[keys].core
    shapes = {"full": shape}
    if len(core) > 1 and core[-2].broadcast:
        shapes["queries-alike"] = (*shape[:-2], 1, shape[-1])
    if core[-1].broadcast:
        shapes["keys-alike"] = (*shape[:-1], 1)
    if len(shape) > len(core):
        shapes["no-batch"] = shape[len(shape) - len(core) :]
    return shapes


def with_choice_of_masks(semantics: Semantics, arguments: Arguments) -> Semantics:
    """The semantics with the choice of ``fully_masked`` that the masks' shapes decide.

    They are returned unchanged if there is no mask, or if a mask has the shape of no choice or of several.
    """
    choices: set[Any] = set()
    for keys, leaf in arguments.operation.masks.items():
        mask = arguments[leaf.path]
        if mask is not None:
            names = [name for name, shape in mask_encodings(arguments, keys).items() if shape == mask.shape]
            choices |= {semantics.without_keys[name] for name in names} or {None}
    return replace(semantics, fully_masked=choices.pop()) if len(choices) == 1 and None not in choices else semantics


def attendable(
    arguments: Arguments, keys: str | None = None, rows: Numbers | None = None, *, semantics: Semantics = NORMATIVE
) -> Numbers:
    """The keys that every query may attend to: booleans (*batch, n, m) or (*batch, m).

    ``keys`` is by default the attended axis; ``rows`` selects queries. ``semantics`` says how the causal flag and the
    window are aligned, and how far the window reaches.
    """
    operation, shape = arguments.operation, mask_shape(arguments, keys)
    keys = keys or operation.key_size or ""
    mask = arguments[operation.masks[keys].path]
    allowed: Numbers = np.broadcast_to(True if mask is None else mask, shape)
    if operation.query_size is not None and operation.query_size not in operation.masks[keys].sizes:
        allowed = allowed[..., None, :]
    elif rows is not None:
        allowed = allowed[..., rows, :]
    causal, attended = arguments.causal and keys == operation.causal[-1], keys == operation.key_size
    window = None if operation.window is None or not attended else arguments[operation.window]
    left, right = (None, None) if window is None else window
    if causal or left is not None or right is not None:
        distance = key_offsets(arguments, keys, rows, semantics=semantics)
        for bound in (0 if causal else None, right):
            allowed = allowed if bound is None else allowed & (distance <= bound)
        allowed = allowed if left is None else allowed & (distance >= semantics.own_in_window - left)
    lengths = _key_lengths(arguments) if attended else None
    return np.array(allowed if lengths is None else allowed & (np.arange(shape[-1]) < lengths[..., None, None]))


def key_offsets(
    arguments: Arguments, keys: str, rows: Numbers | None = None, *, semantics: Semantics = NORMATIVE
) -> Numbers:
    """Position of each key minus that of the query's diagonal: (n, m), or (*batch, n, m) if lengths move it."""
    n, m = arguments.queries or 0, arguments.size(keys)
    offset: Any = m - n if semantics.bottom_right else 0
    lengths = aligning_lengths(arguments, semantics)
    if lengths is not None and keys == arguments.operation.key_size:
        offset = lengths[..., None, None] - n
    positions = np.arange(n) if rows is None else rows
    return np.asarray(np.arange(m) - positions[:, None] - offset)


def penalised_distances(
    arguments: Arguments, rows: Numbers | None = None, *, semantics: Semantics = NORMATIVE
) -> Numbers:
    """Distances that linear biases penalise, for all heads: (1, n, m), or (*batch, 1, n, m) if lengths move them."""
    offsets = key_offsets(arguments, arguments.operation.key_size or "", rows, semantics=semantics)
    distances = -offsets if semantics.alibi_distances == "signed" else np.abs(offsets)
    return np.asarray(distances[..., None, :, :])


def aligning_lengths(arguments: Arguments, semantics: Semantics) -> Numbers | None:
    """Key lengths at whose ends the last query is aligned; None if lengths move no query."""
    return _key_lengths(arguments) if semantics.length_alignment == "at-length" else None


def _key_lengths(arguments: Arguments) -> Numbers | None:
    """Number of keys before the padding, for each batch element; None without lengths."""
    leaf = arguments.operation.hiding_argument(arguments.operation.key_size)
    return None if leaf is None or leaf.kind is not Kind.INT else arguments[leaf.path]


def with_feature_axes(rows: Numbers, leaf: Leaf, query_size: str | None) -> Numbers:
    """Numbers per query (or per batch element), with axes to broadcast against ``leaf``."""
    core = len(leaf.core)
    of_queries = {core + axis for axis in leaf.axes(query_size)} if query_size is not None else set()
    return np.expand_dims(rows, tuple(i - core for i in range(core) if i not in of_queries))


def mask_options(operation: Operation) -> list[str]:
    """Paths of the options that hide keys: causal flag, window, key lengths."""
    hides = operation.hiding_argument(operation.key_size)
    paths = (operation.flag, operation.window, hides.path if hides and hides.kind is Kind.INT else None)
    return [path for path in paths if path is not None and path in operation.defaults]


def with_explicit_mask(
    arguments: Arguments, rows: Numbers | None = None, *, semantics: Semantics = NORMATIVE
) -> Arguments:
    """A copy whose mask or selection expresses causal flag, window and lengths.

    ``rows`` are the queries to keep, by default all.
    Lengths that move the distances of a linear bias remain.
    """
    operation = arguments.operation
    defaults = {path: operation.defaults[path] for path in mask_options(operation)}
    slopes = operation.part(ScoreEffect.SLOPES)
    if semantics.length_alignment == "at-length" and slopes and arguments[slopes] is not None:
        defaults = {path: x for path, x in defaults.items() if path not in operation.lengths}
    if arguments.causal and operation.selections:
        arguments = _without_later_keys(arguments, semantics).replaced(defaults)
    selected = arguments if rows is None else arguments.along(operation.query_size or "", take(rows))
    if all(arguments[path] is x for path, x in defaults.items()) or operation.mask is None:
        return selected
    return selected.replaced(defaults).with_mask(attendable(arguments, rows=rows, semantics=semantics))


def _without_later_keys(arguments: Arguments, semantics: Semantics) -> Arguments:
    """A copy that selects no keys after the query."""
    n, m = arguments.queries or 0, arguments.keys_count or 0
    last = np.arange(n)[:, None] + (m - n if semantics.bottom_right else 0)
    selections = {path: arguments.array(path) for path in arguments.operation.selections}
    return arguments.replaced({path: np.where(x > last, -1, x) for path, x in selections.items()})


def with_first_keys(arguments: Arguments) -> Arguments:
    """A copy whose mask rows without keys allow the first key; if causal, all rows."""
    for keys, leaf in arguments.operation.masks.items():
        mask = arguments[leaf.path]
        if mask is not None and mask.shape[-1]:
            first = np.arange(mask.shape[-1]) == 0
            arguments = arguments.with_mask(mask | (first & (arguments.causal | ~mask.any(-1, keepdims=True))), keys)
    return arguments


def live_rows(arguments: Arguments, *, semantics: Semantics = NORMATIVE) -> Numbers:
    """Queries with a sink or an attendable key of every kind: (*batch, n) or (*batch).

    A sink has all the weight where no key is attendable, whatever ``fully_masked`` declares.
    """
    sink = arguments.operation.part(ScoreEffect.SINK)
    return rows_with_keys(arguments, semantics=semantics) | (bool(sink) and arguments[sink] is not None)


def rows_with_keys(arguments: Arguments, *, semantics: Semantics = NORMATIVE) -> Numbers:
    """Queries with an attendable key of every kind: (*batch, n), or (*batch) without n."""
    live: Numbers = np.ones((), bool)
    for keys in arguments.operation.emptying_masks:
        live = np.asarray(live & np.any(attendable(arguments, keys, semantics=semantics), axis=-1))
    return live


def collapsed_masks(
    arguments: Arguments, keys: str, limits: Limits, rng: np.random.Generator
) -> Iterator[tuple[Arguments, tuple[int, ...]]]:
    """Arguments and mask shapes with axes of size 1, for which wrong broadcasting raises nothing."""
    operation = arguments.operation
    core = len(operation.masks[keys].core)
    shape = mask_shape(arguments, keys)
    batch = len(shape) - core
    broadcasts = limits.broadcasting
    small = [size if rng.random() < 0.5 or (i < batch and not broadcasts) else 1 for i, size in enumerate(shape)]
    first_dim = int(rng.integers(batch + 1)) if broadcasts else 0  # batch dimensions before it are absent
    yield arguments, tuple(small[first_dim:])
    query_size, n, m = operation.query_size, arguments.queries, arguments.size(keys)
    if core < 2 or query_size is None or query_size == keys or limits.multiple_of > 1 or not n or not m:
        return
    # With as many queries as keys, a kernel that exchanges the two axes raises nothing.
    count = min(m, LARGEST_SQUARE)  # as many queries, repeated if there are fewer
    square = arguments.along(keys, keep(count)).along(query_size, take(np.arange(count) % n))
    yield square, (*shape[:batch], 1, count)
    yield square, (*shape[:batch], count, 1)
    if not batch and broadcasts and limits.max_batch_dims:
        # A mask per batch element, of a call without a batch: its first axis fits the queries too.
        few_queries = arguments.along(query_size, keep(4))
        yield few_queries, (few_queries.queries or 0, 1, m)
    if batch and shape[batch - 1]:
        # As many queries as batch elements: the batch axis fits the queries too.
        query_per_element = arguments.along(query_size, take(np.arange(shape[batch - 1]) % n))
        yield query_per_element, (*shape[:batch], 1, m)
