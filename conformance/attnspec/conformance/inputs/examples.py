"""One example: a few drawn words that determine every number of a call, so that it can be printed and replayed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.spec.contract.operation import Argument, Kind, Operation

KINDS = ("normal", "integers", "ties", "ones", "large", "wide", "offset", "small", "equal-rows", "zeros")
"""How the numbers of an array are distributed."""

MASKS = ("absent", "random", "padding", "causal", "one-key", "banded", "all", "nothing", "some-rows-nothing")
"""What a mask looks like."""


@dataclass(frozen=True)
class Example:
    """The structure of one call. ``kept`` says for every argument which batch dimensions it has in full.

    The numbers come from ``seed``, one stream for each argument, so that changing one leaves the others.
    """

    sizes: Mapping[str, int]
    batch: tuple[int, ...] = ()
    kept: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    mask: str = "absent"
    mask_broadcast: tuple[str, ...] = ()
    seed: int = 0

    def arguments(self, operation: Operation, dtype: str) -> Arguments:
        """The arguments that the example stands for, exactly representable in the dtype."""
        values: dict[str, Any] = {}
        for i, a in enumerate(operation.arguments):
            rng = np.random.Generator(np.random.PCG64([self.seed, i]))
            if a.kind is Kind.SIZE:
                values[a.name] = self.sizes[a.name]
            elif a.kind is Kind.FLAG:
                values[a.name] = self.flags.get(a.name, a.default)
            elif a.kind is Kind.INT:
                values[a.name] = rng.integers(0, self.sizes["m"] + 1, self.shape(a))
            elif a.kind is Kind.BOOL:
                values[a.name] = None if self.mask == "absent" else boolean_mask(self.mask, self.shape(a), rng)
            else:
                weight = (not a.batched and operation.chapter not in ("scoring",)) or a.name.startswith("w")
                values[a.name] = exact_in(
                    numbers(self.kinds.get(a.name, "normal"), self.shape(a), rng, dtype, weight), dtype
                )
        return Arguments(operation, values)

    def shape(self, a: Argument) -> tuple[int, ...]:
        """The shape of an argument in this example."""
        kept = self.kept.get(a.name, (True,) * len(self.batch))
        batch = tuple(b if k else 1 for b, k in zip(self.batch, kept, strict=True)) if a.batched else ()
        core = []
        for d in a.core:
            size = int(np.prod([self.sizes[f] for f in d.factors]))
            core.append(1 if d.broadcast and d.name in self.mask_broadcast else size)
        return (*batch, *core)


def numbers(kind: str, shape: tuple[int, ...], rng: np.random.Generator, dtype: str, weight: bool = False) -> Numbers:
    """Numbers of a kind. ``weight`` scales them as the weights of a layer are, by their last dimension."""
    half = dtype == "float16"
    scale = float(1 / np.sqrt(max(shape[-1], 1))) if weight and shape else 1.0
    power = float(2.0 ** np.round(np.log2(scale)))
    match kind:
        case "zeros":
            return np.zeros(shape)
        case "ones":
            return np.full(shape, 0.5 if weight else 1.0)
        case "integers":
            return rng.integers(-3, 4, shape).astype(float) * power
        case "ties":
            return rng.choice([-1.0, 0.0, 1.0], shape) * power
        case "large":
            return rng.standard_normal(shape) * scale * (6 if half else 30)
        case "wide":
            exponents = rng.integers(-12 if half else -20, 3 if half else 6, shape)
            return np.asarray(rng.standard_normal(shape) * scale * 2.0**exponents)
        case "offset":
            return rng.standard_normal(shape) * scale + (0.0 if weight else 4.0)
        case "small":
            return rng.standard_normal(shape) * scale * 2.0**-9
        case "equal-rows":
            row = rng.standard_normal((*shape[:-2], 1, *shape[-1:]) if len(shape) > 1 else shape)
            return np.array(np.broadcast_to(row * scale, shape))
        case _:
            return rng.standard_normal(shape) * scale


def boolean_mask(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """A mask of a kind; one with a single row of keys has shape (…, m), any other (…, n, m)."""
    *batch, m = shape
    if kind == "nothing":
        return np.zeros(shape, bool)
    if kind == "random":
        return rng.random(shape) < 0.6
    if kind == "padding":
        lengths = rng.integers(0, m + 1, (*batch[:-1], 1) if len(shape) > 1 else ())
        return np.array(np.broadcast_to(np.arange(m) < lengths[..., None], shape))
    if kind == "one-key":
        chosen = rng.integers(0, max(m, 1), batch)
        return np.asarray(np.arange(m) == np.asarray(chosen)[..., None])
    if kind == "some-rows-nothing":
        return (rng.random(shape) < 0.7) & (rng.random((*batch, 1)) < 0.6)
    rows = np.arange(shape[-2] if len(shape) > 1 else 1)[:, None]
    columns = np.arange(m)
    drawn = {"causal": columns <= rows, "banded": np.abs(columns - rows) <= 1}.get(kind, np.ones((1, m), bool))
    return np.array(np.broadcast_to(drawn if len(shape) > 1 else drawn[0], shape))
