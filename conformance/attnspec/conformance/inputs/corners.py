"""Corners: rows of a covering array over what is known to break kernels, every pair of levels in some row.

Random draws alone rarely meet two conditions at once, such as more than 128 keys under a broadcast mask.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnspec.conformance.inputs.examples import KINDS, MASKS, Example
from attnspec.spec.contract.backend import Limits
from attnspec.spec.contract.operation import Kind, Operation

LENGTHS = (1, 2, 3, 0, 5, 7, 16, 17, 33, 63, 64, 65, 127, 128, 129, 130, 192, 255, 256, 257)
"""Numbers of queries and keys: around the tile sizes of kernels, and those that are no multiple of anything."""

FEATURES = (1, 2, 3, 4, 8, 16, 17, 24, 32, 33, 64, 65, 80, 128)
HEADS = (1, 2, 3, 4, 8)
BATCHES: tuple[tuple[int, ...], ...] = ((), (2,), (3, 2), (1,), (4,), (2, 1, 3))
LENGTH_NAMES = frozenset({"n", "m"})
HEAD_DIMS = frozenset({"d", "d_k", "d_v", "d_q", "p_q", "p_v"})

TILE = 128
"""Rows or keys that a kernel computes at a time, at the most."""

LONG = (("m",), ("n",), ("n", "m"), ("d", "d_v", "p_v"))
"""Which sizes are beyond a tile in the first rows; where several are, tiles are half as large."""

FAR_BEYOND = 256
"""How many times the bound on work an example may take before it loses its batch."""

Row = dict[str, Any]


def size_levels(name: str, operation: Operation, limits: Limits) -> tuple[int, ...]:
    """The sizes that a name may have, within the limits."""
    if name in LENGTH_NAMES:
        lengths = {_multiple(x, limits.multiple_of) for x in LENGTHS}
        return tuple(sorted(x for x in lengths if limits.max_length is None or x <= limits.max_length))
    if name in HEAD_DIMS and limits.head_sizes is not None:
        return limits.head_sizes
    return HEADS if name == "h" and operation.chapter == "multihead" else FEATURES


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


def factors(operation: Operation, limits: Limits) -> dict[str, Sequence[Any]]:
    """What varies, and its levels."""
    result: dict[str, Sequence[Any]] = {
        f"size:{name}": size_levels(name, operation, limits) for name in operation.size_names
    }
    batched = [a for a in operation.arguments if a.batched]
    if batched:
        result["batch"] = [b for b in BATCHES if len(b) <= limits.max_batch_dims]
    for a in operation.arguments:
        if a.kind is Kind.FLAG:
            result[f"flag:{a.name}"] = (False, True)
        if a.kind is Kind.BOOL:
            result["mask"] = MASKS
            result["mask-broadcast"] = ((), (), *((d.name,) for d in a.core))
        if a.batched and a.dims[0].broadcast and len(batched) > 1 and limits.broadcasting:
            result[f"kept:{a.name}"] = ("all", "all", "none", "first")
        if a.kind is Kind.FLOAT:
            result[f"kind:{a.name}"] = KINDS
    return result


def covering_rows(levels: dict[str, Sequence[Any]], rng: random.Random, most: int, tries: int = 12) -> Iterator[Row]:
    """Rows that cover all pairs of levels, greedily, the best of a few at a time; at most ``most``."""
    names = list(levels)
    options = [list(dict.fromkeys(levels[n])) for n in names]
    weights = [list(levels[n]) for n in names]
    first = np.cumsum([0, *map(len, options)])
    of = np.repeat(np.arange(len(names)), [len(o) for o in options])
    # Which pairs of levels, numbered through all factors, no row has covered yet.
    open_pairs = of[:, None] < of
    for _ in range(most):
        if len(names) > 1 and not open_pairs.any():
            return
        rows = np.array([[options[i].index(rng.choice(weights[i])) for i in range(len(names))] for _ in range(tries)])
        rows += first[:-1]
        missing = np.argwhere(open_pairs)
        if len(missing):
            pair = missing[rng.randrange(len(missing))]
            rows[:, of[pair]] = pair
        gains = open_pairs[rows[:, :, None], rows[:, None, :]].sum((1, 2))
        best = rows[int(gains.argmax())]
        open_pairs[np.ix_(best, best)] = False
        yield {n: options[i][best[i] - first[i]] for i, n in enumerate(names)}


def corners(operation: Operation, limits: Limits, *, seed: int, most: int, work: float) -> list[Example]:
    """Examples of an operation that cover pairs of levels; ``work`` bounds the multiply-adds of each.

    The first ones are long in keys, in queries, in both under a causal mask, and wide, however few there are.
    """
    rng = random.Random(seed)
    levels = factors(operation, limits)
    spared: list[tuple[str, ...]] = [*LONG, *[()] * most]
    return [
        example_from(
            _lengthened(row, names, levels, rng), operation, limits, seed=rng.getrandbits(32), work=work, spared=names
        )
        for row, names in zip(covering_rows(levels, rng, most), spared, strict=False)
    ]


def _lengthened(row: Row, names: tuple[str, ...], levels: dict[str, Sequence[Any]], rng: random.Random) -> Row:
    """The row with large lengths, and with numbers that hide nothing."""
    tile = TILE if len(names) == 1 else TILE // 2
    changed: Row = {
        f"size:{name}": _beyond(tile, levels[f"size:{name}"], rng) for name in names if f"size:{name}" in levels
    }
    if not changed:
        return row
    if "n" in names and len(names) > 1:
        changed |= {name: value for name, value in (("flag:causal", True), ("batch", ())) if name in levels}
    return {**row, **changed, **{name: "normal" for name in levels if name.startswith("kind:")}}


def _beyond(tile: int, lengths: Sequence[int], rng: random.Random) -> int:
    """A length in the second or third tile, or the largest that there is."""
    return rng.choice([x for x in lengths if tile < x <= 2 * tile + 2] or [max(lengths)])


def example_from(
    row: Row, operation: Operation, limits: Limits, *, seed: int, work: float, spared: tuple[str, ...] = ()
) -> Example:
    """The example that a row of levels stands for, cut down to the bound on work but for the spared sizes."""
    sizes = {n.partition(":")[2]: v for n, v in row.items() if n.startswith("size:")}
    batch = tuple(row.get("batch", ()))
    batched = [a.name for a in operation.arguments if a.batched]
    sizes = tamed(sizes, batch, operation, limits, work, random.Random(seed), spared)
    if multiply_adds(sizes, batch, operation) > FAR_BEYOND * work:
        batch = ()  # lengths that are multiples of many cannot be cut any further
    kept = {name: _kept(row.get(f"kept:{name}", "all"), batch) for name in batched}
    return Example(
        sizes=sizes,
        batch=batch,
        kept=kept,
        kinds={n.partition(":")[2]: v for n, v in row.items() if n.startswith("kind:")},
        flags={n.partition(":")[2]: v for n, v in row.items() if n.startswith("flag:")},
        mask=row.get("mask", "absent"),
        mask_broadcast=tuple(row.get("mask-broadcast", ())),
        seed=seed,
    )


def _kept(pattern: str, batch: tuple[int, ...]) -> tuple[bool, ...]:
    if pattern == "first":
        return tuple(i == 0 for i in range(len(batch)))
    return (pattern == "all",) * len(batch)


def tamed(
    sizes: dict[str, int],
    batch: tuple[int, ...],
    operation: Operation,
    limits: Limits,
    work: float,
    rng: random.Random,
    spared: tuple[str, ...] = (),
) -> dict[str, int]:
    """Sizes that stay within the bound on work: one that is more than small is lowered, again and again.

    What goes wrong beyond a size needs only that size: those that are spared stay, and one drawn by lot stays while
    there are others.
    """
    sizes = dict(sizes)
    large = sorted(name for name, size in sizes.items() if size > 8)
    last = rng.choice(large) if large else ""
    while multiply_adds(sizes, batch, operation) > work:
        lower = {
            name: [x for x in size_levels(name, operation, limits) if x < size]
            for name, size in sizes.items()
            if size > 8 and name not in spared
        }
        names = sorted(name for name, options in lower.items() if options)
        if not names:
            break
        name = rng.choice([n for n in names if n != last] or names)
        sizes[name] = max(lower[name])
    return sizes


def multiply_adds(sizes: dict[str, int], batch: tuple[int, ...], operation: Operation) -> float:
    """About how many multiply-adds a call takes: products of matrices take three sizes."""
    lengths = [sizes["n"]] if "n" in sizes and "m" not in sizes and operation.takes("x") else []
    product = 1.0
    for size in (*sorted([*sizes.values(), *lengths])[-3:], *batch):
        product *= max(size, 1)
    return product
