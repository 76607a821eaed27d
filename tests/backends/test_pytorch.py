"""The PyTorch backend against its formulas in float64, and at its edges."""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
import torch
from torch import Tensor

import attnspec.backends.pytorch as backend
from attnspec.backends.pytorch.runtime.on_cuda import semantics as semantics_on_cuda
from attnspec.conformance.judging.declaration import Contract
from attnspec.reference import REFERENCE
from attnspec.reference.budget import judged
from attnspec.spec import (
    OPERATIONS,
    QUESTIONS,
    AttentionDecoderParameters,
    AttentionGateParameters,
    Axis,
    DecoderLayerParameters,
    DotScores,
    EncoderDecoderParameters,
    EncoderLayerParameters,
    FeedForwardParameters,
    GatedFeedForwardParameters,
    GRUParameters,
    KeyValueCache,
    Kind,
    LanguageModelParameters,
    LayerNormParameters,
    Leaf,
    LSTMParameters,
    MultiHeadParameters,
    Operation,
    Option,
    PatchEmbeddingParameters,
    RNNParameters,
    ShapeError,
    implements,
    precision,
)
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import build_tree, dimension_value, flatten, map_tree, unscoped, without_indices
from tests.budgets import assert_within_budgets

torch.set_num_threads(1)

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OPERATIONS_HERE = [o for o in OPERATIONS.values() if not o.reference_only]
DIFFERENTIABLE = [o for o in OPERATIONS_HERE if o.differentiable]
MASKED = [o for o in DIFFERENTIABLE if o.mask]
WEIGHING = [o for o in MASKED if (not o.attended and o.floats[0].batched) or o.pooled or o.linear]
"""Operations whose rows without keys are zero, such as softmax; in encoder_layer a residual is added."""
SIZES = {"n": 5, "m": 7, "d": 6, "d_q": 6, "d_k": 4, "d_v": 3, "h": 2, "heads": 2, "p_q": 4, "p_k": 8, "p_v": 5}
SIZES |= {"p_o": 3, "d_x": 6, "d_m": 4, "d_s": 6, "d_h": 4, "f": 5, "q": 3, "d_p": 2, "vocabulary": 9}
SIZES |= {"p": 4, "spare": 2, "d_y": 5, "t": 4, "depth": 2}
SIZES |= {"slices": 4, "rows": 2, "columns": 3, "patch": 2, "channels": 3, "d_g": 5}
SIZES |= {"slices_from": 2, "rows_from": 3, "columns_from": 5}
SIZES |= {"taps": 4, "past": 3, "slots": 5}
SIZES |= {"cached": 3, "source_vocabulary": 8}
SIZES |= {"heads_k": 2, "group": 3, "pages": 5, "blocks": 2, "page": 3, "sequences": 2, "parts": 3, "pairs": 2}
SIZES |= {"rest": 1, "axes": 2}
SIZES |= {"d_c": 5, "d_r": 3, "entries": 3, "query_blocks": 3, "key_blocks": 3}
SIZES |= {"rest": 1, "axes": 2, "quarters": 2}
SIZES |= {"d_c": 5, "d_r": 3}


def name_of(operation: Operation) -> str:
    return operation.name


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def arguments(
    operation: Operation,
    dtype: torch.dtype = torch.float64,
    batch: tuple[int, ...] = (2,),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Float arguments of the Protocol's shapes, and a random mask with one fully masked row."""
    chosen, drawn = {**SIZES, **sizes}, generator()

    def draw(node: Leaf | Option) -> Tensor | int | None:
        if isinstance(node, Option) and node.kind is Kind.SIZE:
            return chosen[node.path]
        if isinstance(node, Option) and node.path not in {*operation.defaults, *operation.indices}:
            first: int = next(iter(operation.trial_values[node.path]))
            return first
        if isinstance(node, Option) or (node.path in operation.lengths and not operation.differentiable):
            return None
        core = (dimension_value(d.factors, {s: chosen[unscoped(s)] for s in d.sizes}) or 0 for d in node.core)
        shape = (*(batch if node.batched else ()), *core)
        if node.kind is Kind.INT:
            if node.path in operation.cumulative:
                total = chosen[operation.cumulative[node.path]]
                return torch.linspace(0, total, shape[0]).long()
            if node.path in operation.selections:
                count = chosen[operation.selections[node.path]]
                orders = torch.rand(*shape[:-1], max(count, shape[-1]), generator=drawn).argsort(-1)[..., : shape[-1]]
                return torch.where((torch.rand(shape, generator=drawn) < 0.7) & (orders < count), orders, -1)
            if node.path in operation.generated_below:
                return torch.randint(operation.generated_below[node.path], tuple(shape), generator=drawn)
            counts = node.path in operation.lengths
            # a length may be as large as its size, an index may not
            size = (operation.lengths if counts else operation.indices)[node.path]
            bound = math.prod(chosen[unscoped(factor)] for factor in size.split("*")) + counts
            return torch.randint(bound, tuple(shape), generator=drawn)
        if node.kind is Kind.FLOAT:
            return torch.randn(shape, generator=drawn, dtype=torch.float64).to(dtype)
        mask = torch.rand(shape, generator=drawn) < 0.6
        if shape and 0 not in shape:
            mask[(0,) * (len(shape) - 1)] = False
        return mask

    tree = build_tree(operation.call, draw, lambda layers: 2)
    return {name: value for name, value in tree.items() if value is not None}


def allowed(mask: Tensor | None, causal: bool, scores: Tensor) -> Tensor:
    both = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        both = both.tril()
    if mask is not None:
        both = both & mask
    return both.expand_as(scores + both)


def weights(scores: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    keep = allowed(mask, causal, scores)
    powers = torch.where(keep, scores.exp(), 0.0)
    return powers / torch.where(keep.any(-1, keepdim=True), powers.sum(-1, keepdim=True), 1.0)


def additive(query: Tensor, key: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    return torch.tanh((query @ w_q.mT)[..., :, None, :] + (key @ w_k.mT)[..., None, :, :]) @ w_v


def gaussian(query: Tensor, key: Tensor) -> Tensor:
    return -(query[..., :, None, :] - key[..., None, :, :]).square().sum(-1) / 2


def scaled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    return weights(q @ k.mT / math.sqrt(q.shape[-1]), mask, causal) @ v


def sigmoid_weighted(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    allowed = allowed.tril() if causal else allowed
    return torch.where(allowed, 1 / (1 + torch.exp(-scores)), 0.0) @ value


def projected(x: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, **options: Any) -> Tensor:
    return scaled(x @ w_q.mT, memory @ w_k.mT, memory @ w_v.mT, **options)


def heads(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, **options: Any
) -> Tensor:
    return joined(query, key, value, w_q, w_k, w_v, scaled, **options) @ w_o.mT


def unscaled(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return weights(q @ k.mT, **options) @ v


def joined(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    attention: Callable[..., Tensor] = unscaled, **options: Any,
) -> Tensor:  # fmt: skip
    each = [attention(query @ q.mT, key @ k.mT, value @ v.mT, **options) for q, k, v in zip(w_q, w_k, w_v, strict=True)]
    return torch.cat(each, -1)


def biased_heads(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor,
    b_q: Tensor, b_k: Tensor, b_v: Tensor, b_o: Tensor, **options: Any,
) -> Tensor:  # fmt: skip
    each = []
    for r in range(len(w_q)):
        q, k, v = (x @ w[r].mT + b[r] for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v)))
        each.append(scaled(q, k, v, **options))
    return torch.cat(each, -1) @ w_o.mT + b_o


def additive_heads(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor,
    a_q: Tensor, a_k: Tensor, a_v: Tensor, **options: Any,
) -> Tensor:  # fmt: skip
    each = [
        weights(additive(query @ q.mT, key @ k.mT, *scorer), **options) @ (value @ v.mT)
        for q, k, v, *scorer in zip(w_q, w_k, w_v, a_q, a_k, a_v, strict=True)
    ]
    return torch.cat(each, -1) @ w_o.mT


def context(scores: Tensor, annotations: Tensor, mask: Tensor | None = None) -> Tensor:
    of_query = weights(scores.unsqueeze(-2), None if mask is None else mask[..., None, :])
    return (of_query @ annotations).squeeze(-2)


def beside(first: Tensor, second: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])  # type: ignore[no-untyped-call]
    return torch.cat([x.expand(*batch, -1) for x in (first, second)], -1)


def of_state(annotations: Tensor, state: Tensor) -> Tensor:
    return (annotations @ state.unsqueeze(-1)).squeeze(-1)


def rnn(x: Tensor, state: Tensor, parameters: RNNParameters[Tensor]) -> Tensor:
    return (x @ parameters.w_xh + state @ parameters.w_hh + parameters.b_h).tanh()


def step(
    token: Tensor,
    state: Tensor,
    annotations: Tensor,
    parameters: AttentionDecoderParameters[Tensor],
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    p = parameters
    scores = additive(state[..., None, :], annotations, p.w_q, p.w_k, p.w_v).squeeze(-2)
    following = rnn(beside(p.embedding[token], context(scores, annotations, mask)), state, p.cell)
    return (following @ p.w_o.mT + p.b_o).softmax(-1), following


def last_state(states: Tensor, lengths: Tensor | None = None) -> Tensor:
    if lengths is None:
        return states[..., -1, :]
    batch = torch.broadcast_shapes(states.shape[:-2], lengths.shape)  # type: ignore[no-untyped-call]
    behind = torch.cat([torch.zeros_like(states[..., :1, :]), states], -2).expand(*batch, -1, -1)
    return behind.take_along_dim(lengths.expand(batch)[..., None, None], -2).squeeze(-2)


def teacher_forced(tokens: Tensor, state: Tensor, *operands: Any, **options: Any) -> tuple[Tensor, Tensor]:
    logarithms = []
    for i in range(tokens.shape[-1]):
        probabilities, state = step(tokens[..., i], state, *operands, **options)
        logarithms.append(probabilities.log())
    return torch.stack(logarithms, -2), state


def mean(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    keep = allowed(mask, False, scores)
    return torch.where(keep, scores, 0.0) / keep.sum(-1, keepdim=True).clamp(min=1)


def average(value: Tensor, mask: Tensor | None = None) -> Tensor:
    keep = torch.ones(value.shape[:-1], dtype=torch.bool) if mask is None else mask
    return torch.where(keep[..., None], value, 0.0).sum(-2) / keep.sum(-1, keepdim=True).clamp(min=1)


def gru(x: Tensor, state: Tensor, parameters: GRUParameters[Tensor]) -> Tensor:
    p = parameters
    reset = (x @ p.w_xr + state @ p.w_hr + p.b_r).sigmoid()
    update = (x @ p.w_xz + state @ p.w_hz + p.b_z).sigmoid()
    candidate = (x @ p.w_xh + (reset * state) @ p.w_hh + p.b_h).tanh()
    return update * state + (1 - update) * candidate


def lstm(x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[Tensor]) -> tuple[Tensor, Tensor]:
    h, c = state

    def gate(name: str) -> Tensor:
        w_x, w_h, b = (getattr(parameters, f"{weight}{name}") for weight in ("w_x", "w_h", "b_"))
        summed: Tensor = x @ w_x + h @ w_h + b
        return summed

    cell = gate("f").sigmoid() * c + gate("i").sigmoid() * gate("c").tanh()
    return gate("o").sigmoid() * cell.tanh(), cell


def by_steps(
    step: Callable[..., Any], x: Tensor, state: tuple[Tensor, ...], parameters: Any, lengths: Tensor | None = None,
    backward: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Hidden states, and the state at the length; states are tuples."""
    steps = x.shape[-2]
    shapes = [x.shape[:-2], *(s.shape[:-1] for s in state), () if lengths is None else lengths.shape]
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    state = tuple(s.expand(*batch, -1) for s in state)
    hidden = x.new_zeros(*batch, steps, state[0].shape[-1]).unbind(-2)
    states = dict(enumerate(hidden))
    for t in reversed(range(steps)) if backward else range(steps):
        inside = torch.tensor(True) if lengths is None else (t < lengths)[..., None]
        new = step(x[..., t, :], state, parameters)
        state = tuple(torch.where(inside, n, s) for n, s in zip(new, state, strict=True))
        states[t] = torch.where(inside, state[0], 0.0)
    return torch.stack([states[t] for t in range(steps)], -2), state


STEPS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rnn": lambda x, state, p: ((x @ p.w_xh + state[0] @ p.w_hh + p.b_h).tanh(),),
    "gru": lambda x, state, p: (gru(x, state[0], p),),
    "lstm": lambda x, state, p: lstm(x, state, p),
}


def packed(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def alone(state: tuple[Tensor, ...]) -> Any:
    return state if len(state) > 1 else state[0]


def sequence(kind: str) -> Callable[..., Any]:
    def computed(x: Tensor, state: Any, parameters: Any, lengths: Tensor | None = None) -> Any:
        states, final = by_steps(STEPS[kind], x, packed(state), parameters, lengths)
        return states, alone(final)

    return computed


def both_ways(kind: str) -> Callable[..., Any]:
    def computed(x: Tensor, state: Any, parameters: Any, lengths: Tensor | None = None) -> Any:
        runs = [
            by_steps(STEPS[kind], x, packed(s), p, lengths, backward)
            for s, p, backward in zip(state, parameters, (False, True), strict=True)
        ]
        batch = torch.broadcast_shapes(*(states.shape[:-2] for states, _ in runs))  # type: ignore[no-untyped-call]
        states = torch.cat([states.expand(*batch, -1, -1) for states, _ in runs], -1)
        return states, tuple(alone(tuple(part.expand(*batch, -1) for part in final)) for _, final in runs)

    return computed


def stacked(kind: str) -> Callable[..., Any]:
    def computed(x: Tensor, state: Any, layers: Any, lengths: Tensor | None = None) -> Any:
        finals = []
        for i, p in enumerate(layers):
            x, final = by_steps(STEPS[kind], x, tuple(part[..., i, :] for part in packed(state)), p, lengths)
            finals.append(final)
        return x, alone(tuple(torch.stack(parts, -2) for parts in zip(*finals, strict=True)))

    return computed


def earlier_states(x: Tensor, state: Tensor, parameters: Any, lengths: Tensor | None = None) -> Any:
    states, (final,) = by_steps(STEPS["rnn"], x, (state,), parameters, lengths)
    steps = x.shape[-2]
    mask = torch.ones(steps, steps, dtype=torch.bool).tril(-1)
    if lengths is not None:
        mask = mask & (torch.arange(steps) < lengths[..., None])[..., None]
    return weights(states @ states.mT, mask) @ states, states, final


def normalized(x: Tensor, parameters: LayerNormParameters[Tensor], epsilon: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return parameters.gain * centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() + parameters.bias


def linear_recurrence(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor,
    decay: Tensor | None = None, beta: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    group, d = query.shape[-3] // key.shape[-3], query.shape[-1]
    steps = query.shape[-2]
    shapes = [x.shape[:-3] for x in (query, key, value, state, decay) if x is not None]
    shapes += [] if beta is None else [beta.shape[:-2]]
    state = state.expand(*np.broadcast_shapes(*shapes), *state.shape[-3:])
    outputs = []
    for i in range(steps):
        k, v = key[..., i, :], value[..., i, :]
        factor = torch.ones_like(k) if decay is None else decay[..., i, :].exp()
        state = factor.unsqueeze(-1) * state
        if beta is not None:
            v = beta[..., i, None] * (v - torch.einsum("...d,...dv->...v", k, state))
        state = state + torch.einsum("...d,...v->...dv", k, v)
        read = state.repeat_interleave(group, -3)
        outputs.append(torch.einsum("...d,...dv->...v", query[..., i, :], read) * (d**-0.5 if scale is None else scale))
    empty = query.new_zeros(*state.shape[:-3], query.shape[-3], 0, value.shape[-1])
    return torch.stack(outputs, -2) if outputs else empty, state


def convolved(x: Tensor, weight: Tensor, state: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    batch = np.broadcast_shapes(x.shape[:-2], state.shape[:-2])
    rows = torch.cat([state.expand(*batch, *state.shape[-2:]), x.expand(*batch, *x.shape[-2:])], -2)
    output = torch.einsum("...ij,ij->...i", rows.unfold(-2, weight.shape[-1], 1), weight)
    return output if bias is None else output + bias, rows[..., x.shape[-2] :, :]


def last_stored(lengths: Tensor, slots: int) -> Tensor:
    stored = [[max([-1, *range(slot, int(n), slots)]) for slot in range(slots)] for n in lengths.flatten()]
    return torch.tensor(stored).reshape(*lengths.shape, slots)


def counted_tokens(mask: Tensor) -> Tensor:
    before = torch.ones(mask.shape[-1], mask.shape[-1]).triu(1)
    return (mask.float() @ before).long() * mask


def rms_normalized(x: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def perceptron(x: Tensor, parameters: FeedForwardParameters[Tensor]) -> Tensor:
    p = parameters
    return (x @ p.w_1.mT + p.b_1).relu() @ p.w_2.mT + p.b_2


def gated(x: Tensor, parameters: GatedFeedForwardParameters[Tensor]) -> Tensor:
    p, gate = parameters, x @ parameters.w_gate.mT
    return (gate / (1 + (-gate).exp()) * (x @ p.w_up.mT)) @ p.w_down.mT


def attended(x: Tensor, memory: Tensor, w: MultiHeadParameters[Tensor], **options: Any) -> Tensor:
    return heads(x, memory, memory, w.w_q, w.w_k, w.w_v, w.w_o, **options)


def decoder(
    x: Tensor,
    memory: Tensor,
    parameters: DecoderLayerParameters[Tensor],
    mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> Tensor:
    p = parameters
    y = normalized(x + attended(x, x, p.attention, mask=mask, causal=True), p.attention_norm)
    y = normalized(y + attended(y, memory, p.cross_attention, mask=memory_mask), p.cross_attention_norm)
    return normalized(y + perceptron(y, p.feed_forward), p.feed_forward_norm)


def decoders(x: Tensor, memory: Tensor, layers: tuple[DecoderLayerParameters[Tensor], ...], **options: Any) -> Tensor:
    for parameters in layers:
        x = decoder(x, memory, parameters, **options)
    return x


def cached_step(
    x: Tensor,
    cache: KeyValueCache[Tensor],
    memory: Tensor,
    parameters: DecoderLayerParameters[Tensor],
    mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
) -> tuple[Tensor, KeyValueCache[Tensor]]:
    shapes = [x.shape[:-1], cache.key.shape[:-3], cache.value.shape[:-3], memory.shape[:-2]]
    shapes += [m.shape[:-1] for m in (mask, memory_mask) if m is not None]
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    x = x.expand(*batch, -1)
    p, w, row = parameters, parameters.attention, x[..., None, None, :]
    key, value = (before.expand(*batch, -1, -1, -1) for before in (cache.key, cache.value))
    grown = KeyValueCache(torch.cat((key, row @ w.w_k.mT), -2), torch.cat((value, row @ w.w_v.mT), -2))
    allowed = None
    if mask is not None:
        allowed = torch.cat((mask, torch.ones_like(mask[..., :1])), -1)[..., None, None, :]
    each = scaled(row @ w.w_q.mT, grown.key, grown.value, allowed)
    y = normalized(x + torch.cat(each.squeeze(-2).unbind(-2), -1) @ w.w_o.mT, p.attention_norm).unsqueeze(-2)
    seen = None if memory_mask is None else memory_mask[..., None, :]
    y = normalized(y + attended(y, memory, p.cross_attention, mask=seen), p.cross_attention_norm)
    return normalized(y + perceptron(y, p.feed_forward), p.feed_forward_norm).squeeze(-2), grown


def placed(tokens: Tensor, table: Tensor) -> Tensor:
    n, d = tokens.shape[-1], table.shape[-1]
    angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(d) // 2 * 2 / d)[None]
    return table[tokens] * math.sqrt(d) + torch.where(torch.arange(d) % 2 == 0, angle.sin(), angle.cos())


def encoder_decoder(
    source: Tensor,
    target: Tensor,
    parameters: EncoderDecoderParameters[Tensor],
    source_mask: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    p, seen = parameters, None if source_mask is None else source_mask[..., None, :]
    memory = stack(placed(source, p.source_embedding), p.encoder, seen)
    y = decoders(placed(target, p.target_embedding), memory, p.decoder, mask=mask, memory_mask=seen)
    return (y @ p.w.mT + p.b).softmax(-1)


def language_model(tokens: Tensor, p: LanguageModelParameters[Tensor], mask: Tensor | None = None) -> Tensor:
    y = stack(p.embedding[tokens] + p.positions[: tokens.shape[-1]], p.layers, mask)
    return (y @ p.w.mT + p.b).softmax(-1)


def causal_model(tokens: Tensor, parameters: LanguageModelParameters[Tensor], mask: Tensor | None = None) -> Tensor:
    earlier = torch.ones(tokens.shape[-1], tokens.shape[-1], dtype=torch.bool).tril()
    return language_model(tokens, parameters, earlier if mask is None else earlier & mask)


def layer(x: Tensor, parameters: EncoderLayerParameters[Tensor], mask: Tensor | None = None) -> Tensor:
    y = normalized(x + attended(x, x, parameters.attention, mask=mask), parameters.attention_norm)
    return normalized(y + perceptron(y, parameters.feed_forward), parameters.feed_forward_norm)


def stack(x: Tensor, layers: tuple[EncoderLayerParameters[Tensor], ...], mask: Tensor | None = None) -> Tensor:
    for parameters in layers:
        x = layer(x, parameters, mask)
    return x


def patches(image: Tensor, patch: int) -> Tensor:
    height, width = image.shape[-3:-1]
    corners = [(top, left) for top in range(0, height, patch) for left in range(0, width, patch)]
    return torch.stack([image[..., i : i + patch, j : j + patch, :].flatten(-3) for i, j in corners], -2)


def embedded(image: Tensor, parameters: PatchEmbeddingParameters[Tensor]) -> Tensor:
    p = parameters
    projected = patches(image, p.w.shape[1]) @ p.w.flatten(1).mT
    token = p.class_token.expand(*image.shape[:-3], 1, -1)
    return torch.cat((token, projected), -2) + p.positions


def vit(
    image: Tensor,
    embedding: PatchEmbeddingParameters[Tensor],
    layers: tuple[EncoderLayerParameters[Tensor], ...],
    final_norm: LayerNormParameters[Tensor],
) -> Tensor:
    x = embedded(image, embedding)
    for p in layers:
        a, y = p.attention, normalized(x, p.attention_norm)
        x = x + heads(y, y, y, a.w_q, a.w_k, a.w_v, a.w_o)
        x = x + perceptron(normalized(x, p.feed_forward_norm), p.feed_forward)
    return normalized(x, final_norm)[..., 0, :]


def hats(a: int, b: int, dtype: torch.dtype) -> Tensor:
    """Weights (b, a) of linear interpolation between the centres of cells."""
    position = ((torch.arange(b, dtype=dtype) + 0.5) * a / b - 0.5).clamp(0, a - 1)
    return (1 - (position[:, None] - torch.arange(a, dtype=dtype)).abs()).clamp(min=0)


def interpolated(x: Tensor, slices: int, rows: int, columns: int) -> Tensor:
    for axis, size in zip((-4, -3, -2), (slices, rows, columns), strict=True):
        x = (hats(x.shape[axis], size, x.dtype) @ x.movedim(axis, -2)).movedim(-2, axis)
    return x


def gate(x: Tensor, gating: Tensor, parameters: AttentionGateParameters[Tensor]) -> tuple[Tensor, Tensor]:
    p, signal = parameters, interpolated(gating, *x.shape[-4:-1])
    alpha = ((x @ p.w_x.mT + signal @ p.w_g.mT + p.b_g).relu() @ p.psi + p.b_psi).sigmoid()
    return alpha[..., None] * x, alpha


def spatial(state: Tensor, features: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.tanh((state @ w_q.mT)[..., None, None, :] + features @ w_k.mT) @ w_v
    powers = scores.exp()
    alpha = powers / powers.sum((-2, -1), keepdim=True)
    return (alpha[..., None] * features).sum((-3, -2)), alpha


def tap(x: Tensor, w: Tensor, i: int) -> Tensor:
    """The i-th token of a convolution: a sum over all taps."""
    before = (len(w) - 1) // 2
    inside = [(r, i + r - before) for r in range(len(w)) if 0 <= i + r - before < x.shape[-2]]
    return torch.stack([x[..., j, :] @ w[r].mT for r, j in inside]).sum(0)


def neighbours(x: Tensor, mask: Tensor | None) -> Tensor:
    n = x.shape[-2]
    return torch.ones(n, n) if mask is None else mask.expand(*mask.shape[:-2], n, n)


def grouped(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False,
    bias: Tensor | None = None, slopes: Tensor | None = None, sinks: Tensor | None = None,
    key_lengths: Tensor | None = None, first: Tensor | int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    group, (n, m) = query.shape[-3] // key.shape[-3], (query.shape[-2], key.shape[-2])
    key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores if bias is None else scores + bias
    if slopes is not None:
        distance = (torch.arange(n)[:, None] + first - torch.arange(m)).abs()
        scores = scores - slopes[:, None, None] * distance.unsqueeze(-3)
    keep = torch.ones(n, m, dtype=torch.bool)
    keep = keep.tril() if causal else keep
    keep = keep if mask is None else keep & mask
    keep = keep if key_lengths is None else keep & (torch.arange(m) < key_lengths[..., None, None])
    powers = torch.where(keep.unsqueeze(-3), scores.exp(), 0.0)
    total = powers.sum(-1, keepdim=True)
    total = total if sinks is None else total + sinks.exp()[:, None, None]
    output = powers / torch.where(total > 0, total, 1.0) @ value
    return output, total.squeeze(-1).log().expand(output.shape[:-1])


def in_sequences(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor,
    key_lengths: Tensor | None = None, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    stops = key_ends[1:] if key_lengths is None else key_ends[1:].minimum(key_ends[:-1] + key_lengths)
    ends = zip(query_ends, query_ends[1:], key_ends, stops, strict=False)
    parts = [grouped(query[..., a:b, :], key[..., c:d, :], value[..., c:d, :], **options) for a, b, c, d in ends]
    return torch.cat([o for o, _ in parts], -2), torch.cat([x for _, x in parts], -1)


def in_pages(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, block_table: Tensor, key_lengths: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    key, value = (x[block_table].movedim(-4, -3).flatten(-3, -2) for x in (key_pages, value_pages))
    first = key_lengths[..., None, None] - query.shape[-2]
    return grouped(query, key, value, key_lengths=key_lengths, first=first, **options)


def latent_heads(
    query: Tensor, query_rope: Tensor, latent: Tensor, key_rope: Tensor, w_k: Tensor, w_v: Tensor,
    mask: Tensor | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    each = [
        scaled(
            beside(query[..., r, :, :], query_rope[..., r, :, :]), beside(latent @ k.mT, key_rope), latent @ v.mT,
            mask, causal,
        )
        for r, (k, v) in enumerate(zip(w_k, w_v, strict=True))
    ]  # fmt: skip
    return torch.stack(each, -3)


def merged(outputs: Tensor, log_sum_exps: Tensor) -> tuple[Tensor, Tensor]:
    powers = log_sum_exps.exp()
    total = powers.sum(-1)
    output = (powers[..., None] * outputs).sum(-2) / total[..., None]
    return output, total.log().expand(output.shape[:-1])


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    d = x.shape[-1]
    return turned(x, positions[..., None] * 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d))


def rotated_along_axes(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    pairs, unrotated = x.tensor_split([2 * frequencies.shape[-1]], -1)
    pairs = turned(pairs, positions.double() @ frequencies)
    return torch.cat([pairs, unrotated.expand(*pairs.shape[:-1], -1)], -1)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous())
    return torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def indexed(query: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    return ((query @ key.unsqueeze(-3).mT).clamp(min=0) * weights.mT.unsqueeze(-1)).sum(-3)


def to_selected(query: Tensor, key: Tensor, value: Tensor, indices: Tensor, *, causal: bool = False) -> Tensor:
    named = (indices[..., None] == torch.arange(key.shape[-2])).any(-2)
    group = query.shape[-3] // key.shape[-3]
    key, value, named = (x.repeat_interleave(group, -3) for x in (key, value, named))
    return weights(query @ key.mT / math.sqrt(query.shape[-1]), named, causal) @ value


def head_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    m = key.shape[-2]
    return grouped(query, key, torch.eye(m, dtype=key.dtype).expand(*key.shape[:-1], m), **options)[0]


def buckets_of_distances(table: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    ahead, half = key_positions[..., None, :] - query_positions[..., None], len(table) // 2
    exact = half // 2
    logarithms = (ahead.abs() / exact).log() / math.log(128 / exact) * (half - exact)
    far = (exact + logarithms.clamp(min=0).int()).clamp(max=half - 1)
    bucket = torch.where(ahead.abs() < exact, ahead.abs(), far)
    return table[torch.where(ahead > 0, half, 0) + bucket].movedim(-1, -3)


FORMULAS: dict[str, Callable[..., Any]] = {
    "indexer_scores": indexed,
    "selected_attention": to_selected,
    "grouped_query_attention": grouped,
    "attention_weights": head_weights,
    "gated_output": lambda x, gate: x / (1 + (-gate).exp()),
    "variable_length_attention": in_sequences,
    "paged_attention": in_pages,
    "latent_attention": latent_heads,
    "merge_attention": merged,
    "rotary_embedding": rotated,
    "axial_rotary_embedding": rotated_along_axes,
    "sigmoid_attention": sigmoid_weighted,
    "relative_position_bias": buckets_of_distances,
    "dropout": lambda weights, keep=None: weights if keep is None else torch.where(keep, weights, 0.0),
    "dot_scores": lambda query, key: query @ key.mT,
    "scaled_dot_scores": lambda query, key: query @ key.mT / math.sqrt(query.shape[-1]),
    "additive_scores": additive,
    "general_scores": lambda query, key, w: query @ w @ key.mT,
    "location_scores": lambda query, w: query @ w.mT,
    "gaussian_scores": gaussian,
    "softmax": weights,
    "mean_normalization": mean,
    "attention_pooling": lambda weights, value: weights @ value,
    "average_pooling": average,
    "nadaraya_watson": lambda query, key, value, mask=None: weights(gaussian(query, key), mask) @ value,
    "dot_product_attention": lambda query, key, value, **how: weights(query @ key.mT, **how) @ value,
    "scaled_dot_product_attention": lambda query, key, value, **how: scaled(query, key, value, **how),
    "additive_attention": lambda query, key, value, w_q, w_k, w_v, **how: (
        weights(additive(query, key, w_q, w_k, w_v), **how) @ value
    ),
    "self_attention": lambda x, **how: scaled(x, x, x, **how),
    "general_attention": lambda query, key, value, w, **how: weights(query @ w @ key.mT, **how) @ value,
    "projected_self_attention": lambda x, w_q, w_k, w_v, **how: projected(x, x, w_q, w_k, w_v, **how),
    "cross_attention": projected,
    "multi_head_attention": heads,
    "bahdanau_context": lambda state, annotations, w_q, w_k, w_v, mask=None: (
        weights(additive(state[..., None, :], annotations, w_q, w_k, w_v), None if mask is None else mask[..., None, :])
        @ annotations
    ).squeeze(-2),
    "luong_context_dot": lambda state, annotations, **how: context(of_state(annotations, state), annotations, **how),
    "luong_context_general": lambda state, annotations, w, **how: context(
        of_state(annotations, state @ w), annotations, **how
    ),
    "luong_context_location": lambda state, annotations, w, **how: context(state @ w.mT, annotations, **how),
    "biased_multi_head_attention": biased_heads,
    "multi_head_additive_attention": additive_heads,
    "concat_heads_attention": joined,
    "split_heads": lambda x, heads: torch.stack(x.chunk(heads, -1), -3),
    "merge_heads": lambda x: torch.cat(x.unbind(-3), -1),
    "learned_positions": lambda table, n: table.split((n, len(table) - n))[0],
    "add_positions": lambda x, p: x + p,
    "attentional_state": lambda state, context, w: (beside(state, context) @ w.mT).tanh(),
    "embed": lambda tokens, table: table[tokens],
    "output_distribution": lambda state, w, b: (state @ w.mT + b).softmax(-1),
    "concat_output": lambda context, state: beside(context, state),
    "concat_positions": lambda x, p: torch.cat((x, p.expand(*x.shape[:-1], -1)), -1),
    "encoder_context": last_state,
    "decoder_step": step,
    "teacher_forced_decode": teacher_forced,
    "rnn_cell": rnn,
    "rnn_output": lambda state, w_hq, b_q: state @ w_hq + b_q,
    "layer_norm": normalized,
    "rms_norm": rms_normalized,
    "linear_attention": linear_recurrence,
    "short_convolution": convolved,
    "rolling_buffer_positions": last_stored,
    "positions_from_mask": counted_tokens,
    "add_rms_norm": lambda x, residual, weight, **how: (rms_normalized(x + residual, weight, **how), x + residual),
    "feed_forward": perceptron,
    "gelu": lambda x: x * torch.special.ndtr(x),
    "gated_feed_forward": gated,
    "gru_cell": gru,
    "lstm_cell": lstm,
    **{kind: sequence(kind) for kind in STEPS},
    **{f"bidirectional_{kind}": both_ways(kind) for kind in STEPS},
    **{f"stacked_{kind}": stacked(kind) for kind in STEPS},
    "rnn_self_attention": earlier_states,
    "encoder_layer": layer,
    "encoder_stack": stack,
    "patchify": patches,
    "patch_embedding": embedded,
    "vit_encoder": vit,
    "interpolate": interpolated,
    "attention_gate": gate,
    "attention_skip": lambda x, gating, parameters: beside(
        gate(x, gating, parameters)[0], interpolated(gating, *x.shape[-4:-1])
    ),
    "spatial_attention": spatial,
    "convolution": lambda x, w: torch.stack([tap(x, w, i) for i in range(x.shape[-2])], -2),
    "graph_layer": lambda x, w, mask=None: neighbours(x, mask).to(x.dtype) @ x @ w.mT,
    "decoder_layer": decoder,
    "decoder_stack": decoders,
    "cached_decoder_step": cached_step,
    "encoder_decoder": encoder_decoder,
    "decoder_only": causal_model,
    "encoder_only": lambda tokens, parameters, mask=None: language_model(tokens, parameters, mask),
}


"""A second formula of every differentiable operation, written in PyTorch without the backend's functions."""


def arrays(operation: Operation, result: Any) -> list[Any]:
    return [x for _, x in results(operation, result)]


def assert_correct(operation: Operation, inputs: dict[str, Any]) -> None:
    """The call and the second formula are within budgets of the oracle.

    The second formula has another order of operations: it is computed in doubles, and judged by the budgets of single
    precision.
    """
    assert_within_budgets(call(operation, inputs), operation.name, **inputs)
    assert_within_budgets(FORMULAS[operation.name](**inputs), operation.name, precision="ieee32", **inputs)


def call(operation: Operation, inputs: dict[str, Any]) -> Any:
    return getattr(backend, operation.name)(**inputs)


@pytest.mark.parametrize("operation", OPERATIONS_HERE, ids=name_of)
def test_signatures_are_those_of_the_protocols(operation: Operation) -> None:
    own_signature, expected = inspect.signature(getattr(backend, operation.name)), operation.signature
    assert [(p.name, p.kind, p.default) for p in own_signature.parameters.values()] == [
        (p.name, p.kind, p.default) for p in expected.parameters.values()
    ]

    def shape(annotation: Any) -> Any:
        if get_origin(annotation) is Annotated:
            return shape(get_args(annotation)[0])
        if hasattr(annotation, "dim_str"):
            return annotation.dtypes, annotation.dim_str
        origin = get_origin(annotation)
        if origin is Annotated:
            return shape(get_args(annotation)[0])
        if origin is None or origin is Literal or is_dataclass(origin):
            return annotation if origin is Literal else origin or annotation
        return Union if origin is UnionType else origin, [shape(member) for member in get_args(annotation)]

    for name, p in expected.parameters.items():
        assert shape(own_signature.parameters[name].annotation) == shape(p.annotation)
    assert shape(own_signature.return_annotation) == shape(expected.return_annotation)


@pytest.mark.parametrize("operation", OPERATIONS_HERE, ids=name_of)
def test_every_operation_is_exported(operation: Operation) -> None:
    chapter = import_module(f"attnspec.backends.pytorch.{operation.chapter}")
    assert operation.name in chapter.__all__
    assert getattr(backend, operation.name) is getattr(chapter, operation.name)


def test_every_export_of_a_chapter_exists() -> None:
    for chapter in {o.chapter for o in OPERATIONS_HERE}:
        module = import_module(f"attnspec.backends.pytorch.{chapter}")
        assert not [name for name in module.__all__ if not hasattr(module, name)]


CASES = [
    (operation, masked, causal)
    for operation in DIFFERENTIABLE
    for masked in ((False, True) if operation.mask else (False,))
    for causal in ((False, True) if operation.flag else (False,))
]
each_case = pytest.mark.parametrize(
    ("operation", "masked", "causal"),
    CASES,
    ids=[f"{o.name}{'-masked' * masked}{'-causal' * causal}" for o, masked, causal in CASES],
)


def of_case(operation: Operation, masked: bool, causal: bool, **options: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = arguments(operation, **options)
    if not masked:
        inputs = {name: x for name, x in inputs.items() if name not in {leaf.path for leaf in operation.masks.values()}}
    return {**inputs, "causal": True} if causal else inputs


@each_case
def test_results_are_those_of_the_formula(operation: Operation, masked: bool, causal: bool) -> None:
    inputs = of_case(operation, masked, causal)
    assert_correct(operation, inputs)


ODD, LARGE = {"n": 33, "m": 65}, {"n": 130, "m": 20, "d": 40}


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [(torch.float64, LARGE), (torch.float32, ODD), (torch.bfloat16, LARGE), (torch.float16, ODD), (torch.float32, {})],
    ids=["float64-large", "float32-odd", "bfloat16-large", "float16-odd", "float32-small"],
)
@each_case
def test_errors_stay_within_the_budget(
    operation: Operation, masked: bool, causal: bool, dtype: torch.dtype, sizes: dict[str, int]
) -> None:
    inputs = of_case(operation, masked, causal, dtype=dtype, sizes=sizes)
    output = call(operation, inputs)
    plain = map_tree(inputs, lambda _, a: backend.to_numpy(a) if isinstance(a, Tensor) else a)
    oracle = judged(REFERENCE[operation.name], plain, precision(backend.precision[str(dtype).removeprefix("torch.")]))
    for result, verdict in zip(arrays(operation, output), arrays(operation, oracle), strict=True):
        assert result.dtype is dtype
        got = backend.to_numpy(result).astype(verdict.value.dtype)
        with np.errstate(invalid="ignore"):
            error = np.where(got == verdict.value, 0, np.abs(got - verdict.value))
        assert (error <= verdict.budget).all(), np.nanmax(error / verdict.budget)


@pytest.mark.parametrize("operation", DIFFERENTIABLE, ids=name_of)
def test_gradients_are_those_of_finite_differences(operation: Operation) -> None:
    inputs = arguments(operation, sizes={"m": 3, "n": 2})
    # At late positions the smallest step turns a pair by whole angles.
    inputs |= {path: inputs[path] % 8 for path in operation.generated_below if inputs.get(path) is not None}
    floats = {path: a for path, a in flatten(inputs).items() if isinstance(a, Tensor) and a.is_floating_point()}
    leaves = {path: a.requires_grad_() for path, a in floats.items()}

    def compute(*values: Tensor) -> tuple[Tensor, ...]:
        replaced = dict(zip(leaves, values, strict=True))
        return tuple(flatten(call(operation, map_tree(inputs, lambda path, a: replaced.get(path, a)))).values())

    # `fast_mode` differentiates along random directions: enough for whole layers and models
    assert torch.autograd.gradcheck(compute, tuple(leaves.values()), fast_mode=len(leaves) > 12)


def test_gradients_of_a_convolution_of_one_token() -> None:
    x, w = torch.ones(1, 2, requires_grad=True), torch.ones(2, 1, 2, requires_grad=True)
    backend.convolution(x, w).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert w.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0]]
    assert w.grad.tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_values_whose_sum_overflows_are_not_taken_for_infinite(number: float) -> None:
    """Pooling takes the sum of all values to see whether each of them is finite."""
    largest = torch.finfo(torch.float32).max
    x, mask = torch.tensor([[largest], [largest], [number]]), torch.tensor([[True, False, False]])
    assert backend.graph_layer(x, torch.ones(1, 1), mask=mask).tolist() == [[largest]] * 3


@pytest.mark.parametrize("operation", WEIGHING, ids=name_of)
def test_fully_masked_rows_are_zero_and_so_are_their_gradients(operation: Operation) -> None:
    mask = operation.mask.path if operation.mask else ""
    # without sinks, on which log_sum_exp depends even in these rows
    inputs = {path: x for path, x in arguments(operation).items() if path != operation.part(ScoreEffect.SINK)}
    inputs[mask] = torch.zeros_like(inputs[mask])
    result = call(operation, inputs)
    leading = result[0] if isinstance(result, tuple) else result
    assert not leading.any()
    gradients = backend.vjp(operation.name, inputs, map_tree(result, lambda _, x: torch.ones_like(x)))
    if "w_o" in gradients:
        gradients = {name: g for name, g in gradients.items() if name != "w_o"}
    assert not any(bool(g.any()) for g in gradients.values())


@pytest.mark.parametrize("operation", MASKED, ids=name_of)
def test_numbers_at_a_masked_key_do_not_count(operation: Operation) -> None:
    # stored at key 2: a column of scores or of a bias, else rows of keys and values
    scores = [(x.path, -1) for x in operation.floats if -1 in x.axes(str(operation.key_size))]
    spoilt = scores or [(x.path, -2) for x in operation.attended]
    inputs, mask = arguments(operation), operation.mask.path if operation.mask else ""
    inputs[mask] = torch.rand(inputs[mask].shape, generator=generator(1)) < 0.7
    inputs[mask][..., 2] = False
    expected = call(operation, inputs)
    # The tokens of models are integers: there is nothing to spoil.
    assert spoilt or operation.indices

    def spoil(path: str, x: Tensor, number: float) -> Tensor:
        for name, axis in spoilt:
            if name == path:
                x = x.clone()
                x.select(axis, 2).fill_(number)
        return x

    results = [expected]
    for number in (math.nan, math.inf, -math.inf):
        result = call(operation, map_tree(inputs, partial(spoil, number=number)))
        if operation.attends_to_itself:  # the key is a query, too, whose own row is spoilt
            result[..., 2, :] = expected[..., 2, :]
        if isinstance(result, tuple):  # what is cached stays cached
            result = (result[0], *expected[1:])
        results.append(result)
    assert_within_budgets(results, operation.name, **inputs)


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "additive_attention", "nadaraya_watson"])
def test_nan_values_reach_only_rows_that_attend_to_them(name: str) -> None:
    inputs = arguments(OPERATIONS[name], sizes={"n": 3, "m": 3})
    inputs["mask"] = torch.ones(3, 3, dtype=torch.bool).tril()
    expected = call(OPERATIONS[name], inputs)
    spoilt = inputs["value"].clone()
    spoilt[..., 2, :] = math.nan
    result = call(OPERATIONS[name], {**inputs, "value": spoilt})
    assert result[..., 2, :].isnan().all()
    result[..., 2, :] = expected[..., 2, :]
    assert_within_budgets([result, expected], name, **inputs)


EMPTY = [
    (*case, dict.fromkeys(names, 0))
    for case in CASES
    for names in (("n",), ("m",), ("n", "m"))
    if set(names) <= set(case[0].sizes)
]


@pytest.mark.parametrize(("operation", "masked", "causal", "sizes"), EMPTY)
def test_calls_without_queries_or_keys_give_no_nan(
    operation: Operation, masked: bool, causal: bool, sizes: dict[str, int]
) -> None:
    inputs = of_case(operation, masked, causal, sizes=sizes)
    result = call(operation, inputs)
    for x in flatten(result).values():
        assert (x.isfinite() | (x == -torch.inf)).all()
        assert not operation.only_weighs_keys or not x.any()
    gradients = backend.vjp(operation.name, inputs, map_tree(result, lambda _, x: torch.ones_like(x)))
    assert all(bool(g.isfinite().all()) for g in gradients.values())


@pytest.mark.parametrize("batch", [(), (0,), (2, 1, 3)])
@pytest.mark.parametrize("operation", DIFFERENTIABLE, ids=name_of)
def test_any_batch_gives_the_formula(operation: Operation, batch: tuple[int, ...]) -> None:
    inputs = arguments(operation, batch=batch)
    assert_correct(operation, inputs)


@pytest.mark.parametrize("operation", [o for o in DIFFERENTIABLE if o.leaves[0].batched], ids=name_of)
def test_batches_broadcast_and_the_mask_joins(operation: Operation) -> None:
    inputs = arguments(operation, batch=(2, 3))
    batched = [leaf.path for leaf in operation.leaves if leaf.batched]

    def smaller(path: str, x: Any) -> Any:
        if path not in batched:
            return x
        # in turn: one element in the second dimension, no first dimension, the whole batch
        return (x[:, :1], x[0], x)[batched.index(path) % 3]

    inputs = map_tree(inputs, smaller)
    assert_correct(operation, inputs)
    if "mask" in inputs:
        mask = arguments(operation, batch=(4, 1, 1))["mask"]
        inputs["mask"] = mask
        assert_correct(operation, inputs)


def shared_sizes(operation: Operation) -> list[tuple[str, int]]:
    """Float arguments, each with a dimension (from the right) whose size another argument also has."""
    owners = [(x.path, f) for x in operation.leaves for d in x.core if not d.broadcast for f in d.sizes]
    return [
        (x.path, i - len(x.core))
        for x in operation.floats
        for i, d in enumerate(x.core)
        if any(f in d.sizes and other != x.path for other, f in owners)
        and not any(operation.axis(f) & (Axis.SPARE | Axis.GROUP) for f in d.sizes)
    ]


@pytest.mark.parametrize("operation", [o for o in DIFFERENTIABLE if shared_sizes(o)], ids=name_of)
def test_a_wrong_size_is_named(operation: Operation) -> None:
    def doubled(path: str, x: Tensor, name: str, dim: int) -> Tensor:
        return torch.cat((x, x), dim) if name in (path, without_indices(path)) else x

    for name, dim in shared_sizes(operation):
        wrong = map_tree(arguments(operation), partial(doubled, name=name, dim=dim))
        with pytest.raises(ShapeError, match=rf"^{operation.name}: [\w.\[\]]+: expected .*; got "):
            call(operation, wrong)


@pytest.mark.parametrize("operation", MASKED, ids=name_of)
def test_a_wrong_mask_is_named(operation: Operation) -> None:
    inputs = arguments(operation)
    for mask in (leaf.path for leaf in operation.masks.values()):
        for wrong in (torch.ones(()), torch.ones(2, 3, 11)):
            with pytest.raises(ShapeError, match=rf"^{operation.name}: {mask}: expected .*; got "):
                call(operation, {**inputs, mask: wrong.bool()})
        with pytest.raises(TypeError, match=rf"^{operation.name}: {mask}: expected torch.bool"):
            call(operation, {**inputs, mask: inputs[mask].float()})


OPTIONS_WITH_CHOICES = [(o, option) for o in OPERATIONS_HERE for option in o.options if option.choices]
each_option = pytest.mark.parametrize(
    ("operation", "option"), OPTIONS_WITH_CHOICES, ids=[f"{o.name}-{w.path}" for o, w in OPTIONS_WITH_CHOICES]
)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("attn_mask", "mask, boolean"),
        ("is_causal", "causal; got"),
        ("dropout_p", "no dropout"),
        ("enable_gqa", "no flag: grouped_query_attention"),
        ("scale", "a scaled query, or grouped_query_attention"),
    ],
)
def test_a_name_of_pytorch_is_refused_with_the_right_one(name: str, right: str, autocast: bool) -> None:
    x = torch.ones(2, 3)
    named: dict[str, Any] = {name: None}
    with torch.autocast("cpu", enabled=autocast), pytest.raises(TypeError) as raised:
        backend.scaled_dot_product_attention(x, x, x, **named)
    assert str(raised.value).startswith(f"scaled_dot_product_attention: expected {right}")
    assert str(raised.value).endswith(f"got {name}")


@each_option
@pytest.mark.parametrize(
    ("wrong", "got"),
    [(1, "1"), (None, "None"), ("maybe", "'maybe'"), (np.True_, "np.True_"), (torch.ones(2), "Tensor")],
)
def test_an_option_that_is_no_choice_is_named(operation: Operation, option: Option, wrong: Any, got: str) -> None:
    inputs = arguments(operation)
    for _ in range(2):
        with pytest.raises(TypeError) as raised:
            call(operation, {**inputs, option.path: wrong})
        assert str(raised.value) == f"{operation.name}: {option.path}: expected {option.expected}; got {got}"


@each_option
def test_equal_strings_are_the_same_choice(operation: Operation, option: Option) -> None:
    inputs = arguments(operation)
    for word in option.choices:
        equal = "".join(list(word)) if isinstance(word, str) else word
        result, expected = (arrays(operation, call(operation, {**inputs, option.path: x})) for x in (equal, word))
        for x, y in zip(result, expected, strict=True):
            assert torch.equal(x, y)


def without(inputs: dict[str, Any], path: str) -> dict[str, Any]:
    """The arguments with None in the place of an array."""

    def change(p: str, x: Any) -> Any:
        return None if p == path else x

    return {name: map_tree(value, change, name) for name, value in inputs.items()}


@pytest.mark.parametrize("operation", OPERATIONS_HERE, ids=name_of)
def test_none_in_place_of_a_tensor_is_named(operation: Operation) -> None:
    numbers = {path: 1 for path in operation.indices if path not in {leaf.path for leaf in operation.leaves}}
    inputs = {**arguments(operation, sizes={"steps": 2, "beams": 2}), **numbers}
    optional = {leaf.path for leaf in operation.leaves if leaf.optional}
    for path in [p for p, x in flatten(inputs).items() if isinstance(x, Tensor) and without_indices(p) not in optional]:
        with pytest.raises(TypeError) as raised:
            call(operation, without(inputs, path))
        assert str(raised.value) == f"{operation.name}: {path}: expected a torch.Tensor; got NoneType"


def test_a_flag_may_depend_on_a_size_that_is_not_known() -> None:
    def attend(x: Tensor) -> Tensor:
        return backend.additive_attention(x, x, x, w, w, w[0], causal=x.shape[-2] > 4)

    w = torch.randn(5, 5, generator=generator())
    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
    for n in (3, 6, 7):
        x = torch.randn(n, 5, generator=generator())
        results = [compiled(x), attend(x)]
        assert_within_budgets(results, "additive_attention", x, x, x, w, w, w[0], causal=n > 4)


COMPILED = [(o, False) for o in DIFFERENTIABLE]
COMPILED += [(OPERATIONS[name], True) for name in ("softmax", "average_pooling", "scaled_dot_product_attention")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "dynamic"), COMPILED, ids=[f"{o.name}{'-dynamic' * dynamic}" for o, dynamic in COMPILED]
)
def test_operations_compile_as_one_graph(operation: Operation, dynamic: bool) -> None:
    inputs = of_case(operation, bool(operation.mask), bool(operation.flag), dtype=torch.float32)
    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(
        getattr(backend, operation.name), fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    assert_within_budgets([compiled(**inputs), call(operation, inputs)], operation.name, **inputs)


# Particular operations


def test_gaussian_scores_of_close_points_far_from_the_origin() -> None:
    query = torch.tensor([[1e4, 1e4], [1e4, 1e4 + 1e-2]])
    result = backend.gaussian_scores(query, query)
    assert result.diagonal().eq(0).all()
    assert_within_budgets([result, gaussian(query.double(), query.double())], "gaussian_scores", query, query)


def test_regression_far_from_the_keys() -> None:
    keys, values = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[5.0], [6.0], [7.0]])
    assert backend.nadaraya_watson(torch.tensor([[100.0]]), keys, values).item() == 7.0


def regression(variant: str, *inputs: Tensor, mask: Tensor) -> Tensor:
    """By the operation, or by its parts."""
    if variant == "whole":
        return backend.nadaraya_watson(*inputs, mask=mask)
    query, key, value = inputs
    return backend.softmax(backend.gaussian_scores(query, key), mask=mask) @ value


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("variant", ["whole", "parts"])
def test_a_masked_key_has_no_part_in_the_gradients_of_a_regression(variant: str, compiled: bool) -> None:
    """It reaches no gradient of a query that excludes it; another query may attend it."""
    mask = torch.tensor([[True, True, False], [True, False, True]])
    query, value = torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0], [2.0], [3.0]])
    torch.compiler.reset()
    run = torch.compile(regression, fullgraph=True, backend="aot_eager") if compiled else regression
    results, numbers = {}, (math.nan, math.inf, -math.inf, 1e30)
    for stored in (7.0, *numbers):
        for rows in (1, 2):
            leaves = [x.clone().requires_grad_() for x in (query[:rows], torch.tensor([[0.0], [1.0], [stored]]), value)]
            result = run(variant, *leaves, mask=mask[:rows])
            results[stored, rows] = result[0], *torch.autograd.grad(result[0].sum(), leaves)
    for number in numbers:
        for spoilt, clean in zip(results[number, 1], results[7.0, 1], strict=True):
            assert torch.equal(spoilt, clean)
        by_query, by_key = results[number, 1][1:3]
        assert by_query[0] != 0
        assert by_key[2] == 0
        for spoilt, clean in zip(results[number, 2][:2], results[7.0, 2][:2], strict=True):
            assert torch.equal(spoilt[0], clean[0])


def test_a_distance_that_overflows_has_a_slope() -> None:
    query, key = torch.zeros(1, 1, requires_grad=True), torch.tensor([[1e30]])
    scores = backend.gaussian_scores(query, key)
    assert scores.item() == -math.inf
    assert torch.autograd.grad(scores, query)[0] == key


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_mask_that_allows_everything_changes_no_regression(number: float) -> None:
    query, key = torch.tensor([[0.0], [1e3]]), torch.tensor([[0.0], [1.0]])
    value = torch.tensor([[1.0, 2.0], [3.0, number]])
    result = backend.nadaraya_watson(query, key, value, mask=torch.ones(2, 2, dtype=torch.bool))
    assert_within_budgets([result, backend.nadaraya_watson(query, key, value)], "nadaraya_watson", query, key, value)
    np.testing.assert_array_equal(result[0, 1], number)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_extreme_scores(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    scores = torch.tensor([[largest, -largest, 0.0], [-largest, -largest, largest]], dtype=dtype)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    assert backend.softmax(scores, mask=mask).tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_of_infinite_scores(dtype: torch.dtype) -> None:
    inf, nan = math.inf, math.nan
    scores = torch.tensor([[-inf, 2.0, 2.0], [-inf, -inf, -inf], [inf, 0.0, -inf], [-inf, -inf, 7.0]], dtype=dtype)
    mask = torch.tensor([[True, True, True]] * 3 + [[True, True, False]])
    expected = torch.tensor([[0.0, 0.5, 0.5], [nan] * 3, [nan] * 3, [nan, nan, 0.0]], dtype=dtype)
    np.testing.assert_array_equal(backend.softmax(scores, mask=mask).double(), expected.double())
    np.testing.assert_array_equal(backend.softmax(scores[:3]).double(), expected[:3].double())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("m", [3, 300])
def test_infinite_values_show_in_their_features_of_the_rows_that_attend_to_them(m: int, dtype: torch.dtype) -> None:
    """Row 0 does not attend to the first key. The mean of many values is not small, so that it is judged."""
    query, key, value = ((torch.randn(2, size, 5) + mean).to(dtype) for size, mean in ((4, 0), (m, 0), (m, 1)))
    mask = torch.ones(4, m, dtype=torch.bool)
    mask[0, 0] = False
    w_q, w_k, w_v = (torch.randn(shape).to(dtype) for shape in ((6, 5), (6, 5), (6,)))
    infinite = value.clone()
    infinite[:, 0, 0], infinite[:, 1, 1] = math.inf, -math.inf
    for name, first, last in (
        ("scaled_dot_product_attention", (query, key), ()),
        ("additive_attention", (query, key), (w_q, w_k, w_v)),
        ("nadaraya_watson", (query / 4, key / 4), ()),
    ):
        result, clean = (getattr(backend, name)(*first, v, *last, mask=mask) for v in (infinite, value))
        assert (result[:, 1:, 0] == math.inf).all()
        assert (result[..., 1] == -math.inf).all()
        result[:, 1:, 0], result[..., 1] = clean[:, 1:, 0], clean[..., 1]
        assert_within_budgets([result, clean], name, *first, value, *last, mask=mask)


def test_a_great_masked_score_takes_no_part() -> None:
    scores, mask = torch.tensor([[1e30, 1.0, 1.0]]), torch.tensor([[False, True, True]])
    assert backend.softmax(scores, mask=mask).tolist() == [[0.0, 0.5, 0.5]]
    assert backend.mean_normalization(scores, mask=mask).tolist() == [[0.0, 0.5, 0.5]]


def test_a_broadcast_mask_counts_every_key() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = torch.tensor([[True], [False]])
    results = [backend.mean_normalization(scores, mask=mask), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]) / 3]
    assert_within_budgets(results, "mean_normalization", scores, mask=mask)
    results = [backend.average_pooling(scores, mask=torch.tensor([True])), scores.mean(0)]
    assert_within_budgets(results, "average_pooling", scores)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_scores_are_rounded_once(dtype: torch.dtype) -> None:
    """Sums of these integers are exact in float32; most of them are not in 16 bits."""
    for d in (256, 257):
        query, key = (torch.randint(-31, 32, (8, d), generator=generator(seed)).to(dtype) for seed in (0, 1))
        exact = query.double() @ key.double().mT
        assert not torch.equal(exact, exact.to(dtype).double())
        assert torch.equal(backend.dot_scores(query, key), exact.to(dtype))
        if d == 256:
            assert torch.equal(backend.scaled_dot_scores(query, key), (exact / 16).to(dtype))


def test_float16_attention_does_not_overflow_within() -> None:
    query = torch.full((1, 100), 24.0, dtype=torch.float16)
    key = torch.cat((query, -query))
    value = torch.tensor([[1.0], [2.0]], dtype=torch.float16)
    assert backend.dot_product_attention(query, key, value).item() == 1.0


def test_no_keys_give_zero_however_large_the_queries() -> None:
    query, empty = torch.full((65, 8), 300.0, dtype=torch.float16), torch.zeros(0, 8, dtype=torch.float16)
    assert backend.scaled_dot_product_attention(query, empty, empty).eq(0).all()


def test_causal_masks() -> None:
    assert backend.causal_mask(2, 3).tolist() == [[True, False, False], [True, True, False]]
    assert backend.causal_mask(2, 3, include_self=False).tolist() == [[False] * 3, [True, False, False]]
    assert backend.causal_mask(0, 3).shape == (0, 3)
    with pytest.raises(ShapeError, match=r"^causal_mask: n: expected n of at least 0; got -1$"):
        backend.causal_mask(-1, 3)


def test_padding_masks() -> None:
    lengths = torch.tensor([[0, 2], [3, 1]])
    expected = [[[False] * 3, [True, True, False]], [[True] * 3, [True, False, False]]]
    assert backend.padding_mask(lengths, 3).tolist() == expected
    assert backend.padding_mask(torch.tensor(2), 3).tolist() == [True, True, False]
    assert backend.padding_mask(torch.zeros(2, dtype=torch.int64), 0).shape == (2, 0)
    for wrong in (4, -1):
        with pytest.raises(ShapeError, match=rf"^padding_mask: lengths: expected lengths in 0..3; got {wrong}$"):
            backend.padding_mask(torch.tensor([1, wrong]), 3)


def test_sinusoids_are_the_formula() -> None:
    result = backend.sinusoidal_positional_encoding(3, 5)
    angles = [[t / 10000 ** (2 * (i // 2) / 5) for i in range(5)] for t in range(3)]
    expected = [[(math.cos if i % 2 else math.sin)(angle) for i, angle in enumerate(row)] for row in angles]
    assert_within_budgets([result, torch.tensor(expected)], "sinusoidal_positional_encoding", 3, 5)


def test_sinusoids_of_a_large_position() -> None:
    n, d = 100_000, 4
    result = backend.sinusoidal_positional_encoding(n, d)
    assert abs(result[-1, 0].item() - math.sin(n - 1)) < 2**-24
    assert result.dtype is torch.float32


def test_sinusoids_follow_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        result = backend.sinusoidal_positional_encoding(9, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.dtype is torch.float64
    assert_within_budgets(result, "sinusoidal_positional_encoding", 9, 3)


def test_the_backend_declares_normative_choices_and_all_its_precisions() -> None:
    assert backend.name == "pytorch"
    assert all(getattr(backend.semantics, q) == QUESTIONS[q].normative for q in QUESTIONS)
    assert set(backend.precision) == set(backend.limits.dtypes)
    assert all(isinstance(value, str) for value in backend.notes.values())


def test_functions_show_the_contract_and_others_are_left_alone() -> None:
    assert "Where: query (*batch, n, d)" in (backend.dot_scores.__doc__ or "")
    assert implements(DotScores[Tensor])(torch.bmm) is torch.bmm  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64]
)
def test_tokens_are_integers(dtype: torch.dtype) -> None:
    expected = rf"expected torch\.uint8 or a signed integer dtype; got {dtype}$"
    with pytest.raises(TypeError, match=f"^embed: tokens: {expected}"):
        backend.embed(torch.zeros(3, dtype=dtype), torch.ones(4, 2))
    with pytest.raises(TypeError, match=f"^padding_mask: lengths: {expected}"):
        backend.padding_mask(torch.zeros(3, dtype=dtype), 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_tokens_of_any_integer_dtype(dtype: torch.dtype) -> None:
    table = torch.randn(4, 2)
    assert torch.equal(backend.embed(torch.tensor([3, 0], dtype=dtype), table), table[[3, 0]])


def test_embed_supports_vmap_and_meta_and_refuses_unknown_tokens() -> None:
    tokens, table = torch.tensor([[3, 0], [1, 1]]), torch.randn(4, 2)
    assert torch.equal(torch.vmap(backend.embed, in_dims=(0, None))(tokens, table), table[tokens])
    assert backend.embed(tokens.to("meta"), table.to("meta")).shape == (2, 2, 2)
    with pytest.raises(ValueError, match=r"^embed: tokens: expected tokens in 0\.\.3; got 4$"):
        backend.embed(tokens + 1, table)


def test_cuda_has_choices_of_its_own() -> None:
    declared = semantics_on_cuda()
    both = SimpleNamespace(**vars(backend))  # as on a machine with a GPU
    both.limits, both.on_device = replace(backend.limits, devices=("cpu", "cuda")), {"cuda": {"semantics": declared}}
    on_cpu, on_cuda = (Contract.of(both, "pytorch", device).semantics for device in ("cpu", "cuda:1"))
    assert declared.keys() <= OPERATIONS.keys()
    assert on_cuda["additive_attention"] == on_cpu["additive_attention"]
    assert on_cpu["self_attention"].masked_nonfinite == "excluded"
    assert on_cuda["self_attention"].masked_nonfinite == "propagates"
    for name in ("embed", "decoder_only", "rnn_self_attention", "padding_mask", "variable_length_attention"):
        assert (on_cpu[name].rejection, on_cuda[name].rejection) == ("raises", "unchecked"), name
    assert on_cuda["scaled_dot_product_attention"].rejection == "raises"


@pytest.mark.parametrize(("declared", "message"), [
    ({"cpu": {"limits": {}}}, "on_device cpu: expected some of semantics, precision; got 'limits'"),
    ({"cuda": None}, "on_device: expected a mapping of devices to declarations; got {'cuda': None}"),
])  # fmt: skip
def test_declarations_by_device_are_checked(declared: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Contract.of(SimpleNamespace(name="mine", softmax=abs, on_device=declared))


def test_a_declaration_for_an_undeclared_device_is_noted() -> None:
    contract = Contract.of(SimpleNamespace(name="mine", softmax=abs, on_device={"gpu": {"semantics": {}}}))
    assert contract.notes == {"on_device gpu": "not used, because the limits declare cpu"}
