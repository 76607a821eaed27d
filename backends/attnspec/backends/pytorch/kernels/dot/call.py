"""A call of attention, with operands in the four dimensions of kernels."""

from math import prod
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import autocast_enabled
from attnspec.backends.pytorch.kernels.dot.batches import batch_of, merge_batch, merge_bias, merge_ints, merge_mask
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible, conjunction
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import needs_gradients

NAME = "scaled_dot_product_attention"


class Options(NamedTuple):
    """Numeric options of a call; a score is ``scale`` times a product, capped by ``softcap``.

    Query i sees keys i − ``left`` + offset to i + ``right`` + offset. ``logarithms``: log Σ exp is also returned.
    ``wide``: results keep the accumulation dtype, because the caller adds sinks before it rounds.
    """

    scale: float
    left: int | None = None
    right: int | None = None
    softcap: float | None = None
    logarithms: bool = False
    wide: bool = False


class Tensors(NamedTuple):
    """Tensor options of a call; biases and slopes have the accumulation dtype and no gradient.

    ``mask`` (b|1, heads|1, n|1, m). ``lengths`` (b): number of existing keys. ``offsets`` (b) move windows and
    distances. ``slopes`` (heads) times |i + offset − j| are subtracted from scores, ``bias`` (b|1, heads|1, n|1, m) is
    added. Slopes are stored divided by the scale, as kernels apply them to unscaled products.
    """

    mask: Tensor | None = None
    lengths: Tensor | None = None
    offsets: Tensor | None = None
    slopes: Tensor | None = None
    bias: Tensor | None = None


class Call(NamedTuple):
    """A call: query (b, heads, n, d), key (b, heads_k, m, d), value (b, heads_k, m, d_v).

    ``call[:3]`` are the operands. ``is_4d``: the caller's operands had four dimensions. ``in_layer``: the call is part
    of another operation. ``learned``: bias or slopes need gradients, which only the formula has.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    options: Options
    tensors: Tensors
    is_4d: bool = True
    in_layer: bool = False
    learned: bool = False

    def excludes(self) -> bool:
        """Return whether an option may exclude a pair."""
        mask, lengths, offsets, *_ = self.tensors
        return any(x is not None for x in (self.options.left, self.options.right, mask, lengths, offsets))

    def is_simple(self) -> bool:
        """Return whether causality, scale and a mask are the only options."""
        _, left, right, softcap, _, wide = self.options
        alone = all(x is None for x in (left, softcap, *self.tensors[1:]))  # all tensors but the mask
        return alone and right in (None, 0) and not wide

    def differentiates(self) -> bool:
        """Return whether autograd records this call."""
        return needs_gradients(self.query, self.key, self.value)


NO_TENSORS = Tensors()


def allowed(options: Options, tensors: Tensors, query: Tensor, key: Tensor) -> Tensor | None:
    """All conditions as one mask (b|1, heads|1, #n, #m); None allows everything."""
    visible = Visible(None, options.left, options.right, tensors.lengths, tensors.offsets)
    return conjunction(tensors.mask, visible.allowed(query.shape[-2], key.shape[-2], query.device))


def as_4d(x: Tensor, rank: int) -> Tensor:
    """x with ``rank`` (0, 1 or 2) batch dimensions as four dimensions; rank 1 gets one head."""
    return x if rank == 2 else x.unsqueeze(1) if rank == 1 else x[None, None]


def grouped_call(query: Tensor, key: Tensor, value: Tensor, visible: Visible,
                 scoring: Scoring) -> tuple[Call, torch.Size]:  # fmt: skip
    """`Call` and batch of query (*#batch, heads, n, d), key, value (*#batch, heads_k, m, ·)."""
    batch, m, d = batch_of(query, key, value, visible, scoring), key.shape[-2], query.shape[-1]
    is_4d = all(x.dim() == 4 and x.shape[:1] == batch for x in (query, key, value))
    scale = d**-0.5 if scoring.scale is None and d else scoring.scale or 0.0
    mask = None if visible.mask is None else merge_mask(visible.mask, batch, m)
    bias = None if scoring.bias is None else merge_bias(upcast(scoring.bias.detach()), batch, m)
    slopes = None if scoring.slopes is None else upcast(scoring.slopes.detach()) / scale
    tensors = Tensors(mask, merge_ints(visible.lengths, batch), merge_ints(visible.offsets, batch), slopes, bias)
    wide = scoring.sinks is not None
    options = Options(scale, visible.left, visible.right, scoring.softcap, logarithms=True, wide=wide)
    learned = any(x is not None and needs_gradients(x) for x in (scoring.bias, scoring.slopes))
    query, key, value = merge_batch(query, batch), merge_batch(key, batch), merge_batch(value, batch)
    return Call(query, key, value, options, tensors, is_4d, learned=learned), batch


def ungrouped_call(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None,
    in_layer: bool = False,
) -> tuple[Call, torch.Size]:  # fmt: skip
    """`Call` of query (*#batch, n, d), key and value (*#batch, m, ·), and its batch.

    The last batch dimension becomes heads. Written out for speed: this function takes as long as a small kernel.
    """
    q, k, v = query.shape, key.shape, value.shape
    if len(q) < 2 or len(k) < 2 or len(v) < 2:
        _refuse("every argument", "at least two dimensions", min(len(q), len(k), len(v)))
    if k[-1] != q[-1]:
        _refuse("key", f"{q[-1]} features like the query", k[-1])
    if v[-2] != k[-2]:
        _refuse("value", f"{k[-2]} rows like the key", v[-2])
    if not (query.dtype is key.dtype is value.dtype and query.is_floating_point()) and not autocast_enabled(query):
        got = ", ".join(str(x.dtype) for x in (query, key, value))
        raise TypeError(f"{NAME}: query, key, value: expected one floating dtype; got {got}")
    if scale is None and not q[-1]:
        _refuse("query", "at least one feature, or a scale", 0)
    others = (key, value) if mask is None else (key, value, mask)
    if any(x.device != query.device for x in others):
        got = ", ".join(str(x.device) for x in (query, *others))
        _refuse("query, key, value, mask", "one device", got)
    batch = q[:-2]
    equal = batch == k[:-2] == v[:-2]
    if mask is not None:
        of_mask = _batch_of_mask(mask, batch, q[-2], k[-2])
        equal = equal and (len(of_mask) == 0 or of_mask == batch or _broadcasts_mask(of_mask, batch))
    if not equal:
        shapes = (batch, k[:-2], v[:-2]) if mask is None else (batch, k[:-2], v[:-2], of_mask)
        try:
            batch = broadcast(*shapes)
        except RuntimeError:
            _refuse("query, key, value, mask", "batches that broadcast", ", ".join(str(tuple(s)) for s in shapes))
        query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    rank = len(batch)
    if rank == 1:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    elif rank != 2:
        query, key, value = (x.flatten(0, rank - 2) if rank else x[None, None] for x in (query, key, value))
    if mask is not None:
        mask = mask_as_4d(mask, batch, k[-2])
    options = Options(q[-1] ** -0.5 if scale is None else scale, None, 0 if causal else None)
    return Call(query, key, value, options, Tensors(mask), is_4d=rank == 2, in_layer=in_layer), batch


def overlaps(x: Tensor) -> bool:
    """Return whether elements of x share memory; PyTorch's fused kernel copies such strides to its output."""
    return x.numel() > 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _refuse(argument: str, expected: str, got: object) -> NoReturn:
    raise ValueError(f"{NAME}: {argument}: expected {expected}; got {got}")


def _batch_of_mask(mask: Tensor, batch: torch.Size, n: int, m: int) -> torch.Size:
    shape = mask.shape
    if mask.dtype is not torch.bool:
        raise TypeError(f"{NAME}: mask: expected bool, True = attend; got {mask.dtype}")
    if len(shape) < 2 or shape[-2] not in (1, n) or shape[-1] not in (1, m):
        _refuse("mask", f"a shape that broadcasts to {(*batch, n, m)}", tuple(shape))
    return shape[:-2]


def _broadcasts_mask(of_mask: torch.Size, batch: torch.Size) -> bool:
    """Return whether the mask's batch fits without expanding the operands."""
    if len(of_mask) < len(batch):
        return prod(of_mask) == 1
    return len(of_mask) == len(batch) and all(x == 1 or x == size for x, size in zip(of_mask, batch, strict=True))


def mask_as_4d(mask: Tensor, batch: torch.Size, m: int) -> Tensor:
    """The mask as (b|1, h|1, n|1, m) with contiguous rows; the last batch dimension becomes heads."""
    rank, missing = len(batch), len(batch) + 2 - mask.dim()
    if rank < 2:
        mask = mask.unsqueeze(1) if rank and not missing else mask[None, None]
    elif rank == 2:
        mask = mask if not missing else mask[None, None] if missing == 2 else mask.unsqueeze(0)
    else:
        mask = mask[(None,) * missing]
        leading, tail = mask.shape[: rank - 1], mask.shape[rank - 1 :]
        mask = mask.view(1, *tail) if prod(leading) == 1 else mask.expand(*batch[:-1], *tail).flatten(0, rank - 2)
    if mask.shape[-1] != m:
        mask = mask.expand(-1, -1, -1, m)
    return mask if mask.stride(-1) == 1 or m == 1 else mask.contiguous()
