"""The reference against the formulas written once more, element by element, at 50 digits."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from attnspec.reference import REFERENCE, arithmetic, choice, choosing, sinusoidal_positional_encoding
from attnspec.reference.normalization import log_softmax
from attnspec.reference.normalization import sigmoid as plain_sigmoid
from attnspec.reference.transformer import EPSILON
from attnspec.spec import OPERATIONS, Leaf
from attnspec.spec.contract.semantics import choices_of_formula
from attnspec.spec.contract.shapes import bind, results
from attnspec.spec.contract.tree import map_tree, pair_leaves
from tests.budgets import mp

from .conftest import without_keys_for_first_query

ROUNDINGS = 64
"""Allowed error, in unit roundoffs of the largest number; the formulas round less often.

One rounding to float64 would cost a result in longdouble 30 times as much."""

Row = Sequence[Any]
Rows = Sequence[Row]
Score = Callable[[int, int], Any]


def dot(u: Row, v: Row) -> Any:
    return mp.fsum(x * y for x, y in zip(u, v, strict=True))


def linear(x: Rows, w: Rows) -> list[list[Any]]:
    return [[dot(row, out) for out in w] for row in x]


def half_square(u: Row, v: Row) -> Any:
    return -mp.fsum((x - y) ** 2 for x, y in zip(u, v, strict=True)) / 2


def additive(q: Row, k: Row, a: dict[str, Any]) -> Any:
    return mp.fsum(
        v * mp.tanh(dot(w_q, q) + dot(w_k, k)) for v, w_q, w_k in zip(a["w_v"], a["w_q"], a["w_k"], strict=True)
    )


def bilinear(q: Row, w: Rows, k: Row) -> Any:
    return mp.fsum(q[i] * w[i][j] * k[j] for i in range(len(q)) for j in range(len(k)))


def table(score: Score, n: int, m: int) -> list[list[Any]]:
    return [[score(i, j) for j in range(m)] for i in range(n)]


def beyond(i: int, j: int, n: int, m: int) -> int:
    """Distance of key j behind the key on the diagonal of query i."""
    return j - i - (m - n if choice("causal_alignment") == "bottom-right" else 0)


def in_window(away: int, a: dict[str, Any]) -> bool:
    """True if a window reaches a key that is this far behind the diagonal."""
    left, right = a.get("window") or (None, None)
    own = 1 if choice("window_left") == "includes-own" else 0
    return (left is None or away >= own - left) and (right is None or away <= right)


def weights(scores: Rows, a: dict[str, Any]) -> list[list[Any]]:
    result = []
    for i, row in enumerate(scores):
        earlier = [beyond(i, j, len(scores), len(row)) <= 0 or not a.get("causal") for j in range(len(row))]
        keys = [j for j in range(len(row)) if a["mask"][i][j] and earlier[j]]
        if not keys and choice("fully_masked") == "uniform":
            keys, row = list(range(len(row))), [mp.mpf(0)] * len(row)
        total = mp.fsum(mp.exp(row[j]) for j in keys)
        result.append([mp.exp(e) / total if j in keys else mp.mpf(0) for j, e in enumerate(row)])
    return result


def pool(alpha: Rows, value: Rows) -> list[list[Any]]:
    return [[mp.fsum(w * v[c] for w, v in zip(row, value, strict=True)) for c in range(len(value[0]))] for row in alpha]


def attend(score: Callable[[Row, Row], Any], q: Rows, k: Rows, v: Rows, a: dict[str, Any]) -> list[list[Any]]:
    return pool(weights(table(lambda i, j: score(q[i], k[j]), len(q), len(k)), a), v)


def scaled(q: Row, k: Row) -> Any:
    return dot(q, k) / mp.sqrt(len(q))


def join_heads(a: dict[str, Any], score: Callable[..., Any] = dot) -> list[list[Any]]:
    each = [
        attend(score, linear(a["query"], w_q), linear(a["key"], w_k), linear(a["value"], w_v), a)
        for w_q, w_k, w_v in zip(a["w_q"], a["w_k"], a["w_v"], strict=True)
    ]
    return side_by_side(each)


def side_by_side(each: list[Any]) -> list[list[Any]]:
    return [[x for head in each for x in head[i]] for i in range(len(each[0]))]


def additive_heads(a: dict[str, Any]) -> list[list[Any]]:
    def head(r: int) -> Any:
        scorer = {"w_q": a["a_q"][r], "w_k": a["a_k"][r], "w_v": a["a_v"][r]}
        q, k, v = (linear(a[x], a[w][r]) for x, w in (("query", "w_q"), ("key", "w_k"), ("value", "w_v")))
        return attend(lambda q, k: additive(q, k, scorer), q, k, v, a)

    each = [head(r) for r in range(len(a["w_q"]))]
    return linear(side_by_side(each), a["w_o"])


def heads(a: dict[str, Any]) -> list[list[Any]]:
    return linear(join_heads(a, scaled), a["w_o"])


def biased_heads(a: dict[str, Any]) -> list[list[Any]]:
    def head(r: int) -> Any:
        inputs = (("query", "w_q", "b_q"), ("key", "w_k", "b_k"), ("value", "w_v", "b_v"))
        q, k, v = (shifted(linear(a[x], a[w][r]), a[b][r]) for x, w, b in inputs)
        return attend(scaled, q, k, v, a)

    return shifted(linear(side_by_side([head(r) for r in range(len(a["w_q"]))]), a["w_o"]), a["b_o"])


def shifted(rows: Rows, b: Row) -> list[list[Any]]:
    return [[x + y for x, y in zip(row, b, strict=True)] for row in rows]


def context(score: Callable[[Row, int], Any], a: dict[str, Any]) -> Row:
    h = a["annotations"]
    return pool(weights([[score(k, j) for j, k in enumerate(h)]], {"mask": [a["mask"]]}), h)[0]


def affine(x: Row, w: Rows, b: Row) -> list[Any]:
    """Weights (in, out)."""
    return [dot(x, column) + bias for column, bias in zip(zip(*w, strict=True), b, strict=True)]


def step(y: int, s: Row, a: dict[str, Any]) -> list[Any]:
    p = a["parameters"]
    seen = context(lambda h, j: additive(s, h, vars(p)), {**a, "state": s})
    return squashed([*p.embedding[y], *seen], s, p.cell)


def squashed(x: Row, h: Row, p: Any) -> list[Any]:
    sums = zip(affine(x, p.w_xh, p.b_h), affine(h, p.w_hh, [0] * len(h)), strict=True)
    return [mp.tanh(u + v) for u, v in sums]


def distribution(s: Row, w: Rows, b: Row) -> list[Any]:
    return weights([[dot(s, row) + c for row, c in zip(w, b, strict=True)]], {"mask": [[True] * len(b)]})[0]


def decoder(a: dict[str, Any]) -> list[list[Any]]:
    s = step(a["token"], a["state"], a)
    return [distribution(s, a["parameters"].w_o, a["parameters"].b_o), s]


def teacher_forced(a: dict[str, Any]) -> list[Any]:
    s, logarithms = a["state"], []
    for y in a["tokens"]:
        s = step(y, s, a)
        logarithms.append([mp.log(x) for x in distribution(s, a["parameters"].w_o, a["parameters"].b_o)])
    return [logarithms, s]


def beam(a: dict[str, Any]) -> list[Any]:
    """Hypotheses are (score, tokens); those that have ended stay as they are."""

    def penalised(hypothesis: tuple[Any, list[int]]) -> Any:
        score, tokens = hypothesis
        length = tokens.index(a["eos"]) + 1 if a["eos"] in tokens else len(tokens)
        return score / mp.power(mp.mpf(5 + length) / 6, a.get("length_penalty", 0))

    kept: list[tuple[Any, list[int]]] = [(mp.mpf(0), [])]
    for _ in range(a["steps"]):
        extended = []
        for score, tokens in kept:
            if a["eos"] in tokens:
                extended.append((score, [*tokens, a["eos"]]))
                continue
            every, _ = teacher_forced({**a, "tokens": [a["token"], *tokens]})
            extended += [(score + x, [*tokens, w]) for w, x in enumerate(every[-1])]
        kept = sorted(extended, key=lambda hypothesis: -penalised(hypothesis))[: a["beams"]]
    return [kept[0][1], penalised(kept[0])]


def perceptron(x: Row, p: Any) -> list[Any]:
    hidden = [max(dot(x, out) + b, mp.mpf(0)) for out, b in zip(p.w_1, p.b_1, strict=True)]
    return [dot(hidden, out) + b for out, b in zip(p.w_2, p.b_2, strict=True)]


def normal_probability(x: Any) -> Any:
    if choice("gelu_form") == "erf":
        return mp.ncdf(x)
    return 1 / (1 + mp.exp(-mp.sqrt(8 / mp.pi) * (x + mp.mpf(0.044715) * x**3)))


def gated(x: Row, p: Any) -> list[Any]:
    gates = [dot(x, out) for out in p.w_gate]
    hidden = [z / (1 + mp.exp(-z)) * dot(x, out) for z, out in zip(gates, p.w_up, strict=True)]
    return [dot(hidden, out) for out in p.w_down]


def projected(x: Rows, memory: Rows, a: dict[str, Any]) -> list[list[Any]]:
    return attend(scaled, linear(x, a["w_q"]), linear(memory, a["w_k"]), linear(memory, a["w_v"]), a)


def count_normalised(a: dict[str, Any]) -> list[list[Any]]:
    return [
        [e / sum(allowed) if ok else mp.mpf(0) for e, ok in zip(row, allowed, strict=True)]
        for row, allowed in zip(a["scores"], a["mask"], strict=True)
    ]


def average(a: dict[str, Any]) -> list[Any]:
    kept = [v for v, ok in zip(a["value"], a["mask"], strict=True) if ok]
    kept = a["value"] if not kept and choice("fully_masked") == "uniform" else kept
    return [mp.fsum(v[c] for v in kept) / max(len(kept), 1) for c in range(len(a["value"][0]))]


def sinusoid(t: int, column: int, d: int) -> Any:
    angle = t / mp.power(10_000, mp.mpf(2 * (column // 2)) / d)
    return mp.cos(angle) if column % 2 else mp.sin(angle)


def every_pair(score: Callable[[Row, Row, dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda a: [[score(q, k, a) for k in a["key"]] for q in a["query"]]


def attention(score: Callable[[Row, Row, dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda a: attend(lambda q, k: score(q, k, a), a["query"], a["key"], a["value"], a)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def sigmoid_weighted(a: dict[str, Any]) -> list[list[Any]]:
    n, m = len(a["query"]), len(a["key"])

    def weight(i: int, j: int) -> Any:
        attendable = a["mask"][i][j] and (beyond(i, j, n, m) <= 0 or not a.get("causal"))
        return sigmoid(scaled(a["query"][i], a["key"][j]) + a.get("bias", 0)) if attendable else mp.mpf(0)

    return pool(table(weight, n, m), a["value"])


def gru(a: dict[str, Any]) -> list[Any]:
    p, x, h = a["parameters"], a["x"], a["state"]

    def sums(gate: str, state: Row) -> list[Any]:
        of_input, of_state, bias = (getattr(p, name + gate) for name in ("w_x", "w_h", "b_"))
        return [u + v for u, v in zip(affine(x, of_input, bias), affine(state, of_state, [0] * len(h)), strict=True)]

    reset, update = ([sigmoid(s) for s in sums(gate, h)] for gate in "rz")
    if choice("gru_reset") == "before":
        seen = sums("h", [r * y for r, y in zip(reset, h, strict=True)])
    else:
        of_state = affine(h, p.w_hh, [0] * len(h))
        seen = [u + r * v for u, r, v in zip(affine(x, p.w_xh, p.b_h), reset, of_state, strict=True)]
    if choice("gru_update") == "candidate":
        update = [1 - z for z in update]
    return [z * y + (1 - z) * mp.tanh(s) for z, y, s in zip(update, h, seen, strict=True)]


def lstm(a: dict[str, Any]) -> list[list[Any]]:
    p, (h, c) = a["parameters"], a["state"]

    def sums(gate: str) -> list[Any]:
        of_input, of_state, bias = (getattr(p, name + gate) for name in ("w_x", "w_h", "b_"))
        columns = zip(*of_input, strict=True), zip(*of_state, strict=True)
        return [dot(a["x"], w) + dot(h, u) + b for w, u, b in zip(*columns, bias, strict=True)]

    more = 1 if choice("lstm_forget_bias") == "plus-one" else 0
    i, f, o = ([sigmoid(x + (more if gate == "f" else 0)) for x in sums(gate)] for gate in "ifo")
    cell = [f[k] * c[k] + i[k] * mp.tanh(x) for k, x in enumerate(sums("c"))]
    return [[o[k] * mp.tanh(x) for k, x in enumerate(cell)], cell]


def by_steps(
    cell: Callable[[dict[str, Any]], Any], x: Rows, state: Any, p: Any, length: int, backward: bool = False
) -> tuple[list[Row], Any]:
    """The hidden states, 0 from the length on, and the final state; of an LSTM's state (h, c) the first part."""
    hidden: list[Row] = [[mp.mpf(0)] * len(state[0] if isinstance(state, tuple) else state) for _ in x]
    for t in reversed(range(length)) if backward else range(length):
        following = cell({"x": x[t], "state": state, "parameters": p})
        pair = isinstance(state, tuple)
        state, hidden[t] = (tuple(following), following[0]) if pair else (following, following)
    return hidden, state


def sequence(cell: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    def computed(a: dict[str, Any]) -> Any:
        states, final = by_steps(cell, a["x"], a["state"], a["parameters"], a["lengths"])
        return [states, *(final if isinstance(final, tuple) else (final,))]

    return computed


def both_ways(cell: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    def computed(a: dict[str, Any]) -> Any:
        runs = [
            by_steps(cell, a["x"], s, p, a["lengths"], backward)
            for s, p, backward in zip(a["state"], a["parameters"], (False, True), strict=True)
        ]
        parts = [part for _, final in runs for part in (final if isinstance(final, tuple) else (final,))]
        return [side_by_side([states for states, _ in runs]), *parts]

    return computed


def stacked(cell: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    def computed(a: dict[str, Any]) -> Any:
        x, finals = a["x"], []
        for i, p in enumerate(a["layers"]):
            pair = isinstance(a["state"], tuple)
            first = tuple(part[i] for part in a["state"]) if pair else a["state"][i]
            x, final = by_steps(cell, x, first, p, a["lengths"])
            finals.append(final if pair else (final,))
        return [x, *map(list, zip(*finals, strict=True))]

    return computed


def rnn_cell(a: dict[str, Any]) -> list[Any]:
    p = a["parameters"]
    sums = affine(a["x"], p.w_xh, p.b_h), affine(a["state"], p.w_hh, [0] * len(a["state"]))
    return [mp.tanh(u + v) for u, v in zip(*sums, strict=True)]


def earlier_states(a: dict[str, Any]) -> Any:
    states, final = by_steps(rnn_cell, a["x"], a["state"], a["parameters"], a["lengths"])
    steps = range(len(states))
    mask = [[j < i < a["lengths"] for j in steps] for i in steps]
    return [attend(dot, states, states, states, {"mask": mask}), states, final]


CELLS = {"rnn": rnn_cell, "gru": gru, "lstm": lstm}


def normalized(rows: Rows, p: Any, epsilon: float = EPSILON) -> list[list[Any]]:
    result = []
    for row in rows:
        mean = mp.fsum(row) / len(row)
        deviation = mp.sqrt(mp.fsum((x - mean) ** 2 for x in row) / len(row) + mp.mpf(float(epsilon)))
        result.append([g * (x - mean) / deviation + b for x, g, b in zip(row, p.gain, p.bias, strict=True)])
    return result


def linear_recurrence(a: dict[str, Any]) -> list[Any]:
    """Each result as a sum over the earlier steps: with the delta rule, products of matrices I − βkkᵀ."""
    steps, heads_k, d = len(a["query"][0]), len(a["key"]), len(a["state"][0])
    scale = a["scale"] if a.get("scale") is not None else 1 / mp.sqrt(d)

    def transition(h: int, i: int) -> Any:
        rates = [mp.exp(x) for x in a["decay"][h][i]] if a.get("decay") is not None else [1]
        decayed = mp.diag([rates[c % len(rates)] for c in range(d)])
        if a.get("beta") is None:
            return decayed
        k = mp.matrix([*a["key"][h][i]])
        return (mp.eye(d) - a["beta"][h][i] * k * k.T) * decayed

    def written(h: int, i: int) -> Any:
        k, v = mp.matrix([*a["key"][h][i]]), mp.matrix([*a["value"][h][i]])
        return (1 if a.get("beta") is None else a["beta"][h][i]) * k * v.T

    def state(h: int, i: int) -> Any:
        s = mp.matrix([[*row] for row in a["state"][h]])
        for j in range(i):
            s = transition(h, j) * s + written(h, j)
        return s

    def head(r: int) -> int:
        group = len(a["query"]) // heads_k
        return r % heads_k if choice("head_groups") == "interleaved" else r // group

    outputs = [
        [[scale * x for x in (state(head(r), i + 1).T * mp.matrix([*a["query"][r][i]]))] for i in range(steps)]
        for r in range(len(a["query"]))
    ]
    return [outputs, [state(h, steps).tolist() for h in range(heads_k)]]


def convolved_with_state(a: dict[str, Any]) -> list[Any]:
    rows, taps = [*a["state"], *a["x"]], len(a["weight"][0])
    more = [0] * len(a["weight"]) if a.get("bias") is None else a["bias"]
    filters = list(zip(a["weight"], more, strict=True))
    outputs = [
        [b + mp.fsum(w[j] * rows[i + j][c] for j in range(taps)) for c, (w, b) in enumerate(filters)]
        for i in range(len(a["x"]))
    ]
    return [outputs, [[*row] for row in rows[len(a["x"]) :]]]


def last_stored(a: dict[str, Any]) -> list[int]:
    return [max([-1, *range(slot, int(a["lengths"]), a["slots"])]) for slot in range(a["slots"])]


def counted_tokens(a: dict[str, Any]) -> list[int]:
    positions: list[int] = []
    before = 0
    for token in a["mask"]:
        padding = {"zero": 0, "one": 1, "previous": max(before - 1, 0), "minus-one": -1}
        positions.append(before if token else padding[choice("padding_positions")])
        before += bool(token)
    return positions


def rms_normalized(row: Row, a: dict[str, Any]) -> list[Any]:
    more = 1 if choice("rms_weight") == "plus-one" else 0
    root = mp.sqrt(mp.fsum(x**2 for x in row) / len(row) + mp.mpf(float(a.get("epsilon", 1e-6))))
    return [(w + more) * x / root for x, w in zip(row, a["weight"], strict=True)]


def attend_in_heads(x: Rows, memory: Rows, p: Any, a: dict[str, Any]) -> Any:
    return heads({**vars(p), "query": x, "key": memory, "value": memory, **a})


def residuals(x: Rows, a: dict[str, Any], *sublayers: tuple[Callable[[Rows], Any], Any]) -> Any:
    p, before = a["parameters"], a.get("norm") == "pre"
    last = (lambda x: [perceptron(row, p.feed_forward) for row in x]), p.feed_forward_norm
    for sublayer, norm in (*sublayers, last):
        added = [
            [u + v for u, v in zip(r, s, strict=True)]
            for r, s in zip(x, sublayer(normalized(x, norm) if before else x), strict=True)
        ]
        x = added if before else normalized(added, norm)
    return x


def encoder(a: dict[str, Any]) -> Any:
    p = a["parameters"]
    own = {"mask": a["mask"]}
    return residuals(a["x"], a, (lambda x: attend_in_heads(x, x, p.attention, own), p.attention_norm))


def masked_decoder(a: dict[str, Any]) -> Any:
    p, z = a["parameters"], a["memory"]
    own, of_memory = {"mask": a["mask"], "causal": True}, {"mask": a["memory_mask"]}
    return residuals(
        a["x"],
        a,
        (lambda x: attend_in_heads(x, x, p.attention, own), p.attention_norm),
        (lambda x: attend_in_heads(x, z, p.cross_attention, of_memory), p.cross_attention_norm),
    )


def cached_step(a: dict[str, Any]) -> Any:
    p, w, z = a["parameters"], a["parameters"].attention, a["memory"]
    before = a.get("norm") == "pre"
    own = normalized([a["x"]], p.attention_norm) if before else [a["x"]]
    keys, values = (
        [[*rows, linear(own, of_head)[0]] for rows, of_head in zip(cached, projected, strict=True)]
        for cached, projected in ((a["cache"].key, w.w_k), (a["cache"].value, w.w_v))
    )
    allowed = {"mask": [[*a["mask"], True]]}

    def attend_to_cache(x: Rows) -> Any:
        each = [attend(scaled, linear(x, w_q), k, v, allowed) for w_q, k, v in zip(w.w_q, keys, values, strict=True)]
        return linear(side_by_side(each), w.w_o)

    seen = {"mask": [a["memory_mask"]]}
    sublayers = (
        (attend_to_cache, p.attention_norm),
        (lambda x: attend_in_heads(x, z, p.cross_attention, seen), p.cross_attention_norm),
    )
    return [residuals([a["x"]], a, *sublayers)[0], keys, values]


def placed(tokens: Row, rows: Rows) -> list[list[Any]]:
    d = len(rows[0])
    return [
        [mp.sqrt(d) * x + sinusoid(t, column, d) for column, x in enumerate(rows[token])]
        for t, token in enumerate(tokens)
    ]


def distributed(states: Rows, p: Any) -> list[list[Any]]:
    return [distribution(s, p.w, p.b) for s in states]


def sequence_to_sequence(a: dict[str, Any]) -> Any:
    p, seen = a["parameters"], a["source_mask"]
    x, y = placed(a["source"], p.source_embedding), placed(a["target"], p.target_embedding)
    memory = stack(encoder, {"x": x, "layers": p.encoder, "mask": [seen] * len(x)})
    how = {"layers": p.decoder, "mask": a["mask"], "memory_mask": [seen] * len(y)}
    return distributed(stack(masked_decoder, {"x": y, "memory": memory, **how}), p)


def language_model(a: dict[str, Any], causal: bool) -> Any:
    p, n = a["parameters"], len(a["tokens"])
    mask = [[a["mask"][i][j] and (j <= i or not causal) for j in range(n)] for i in range(n)]
    x = [
        [u + v for u, v in zip(p.embedding[token], p.positions[t], strict=True)] for t, token in enumerate(a["tokens"])
    ]
    return distributed(stack(encoder, {"x": x, "layers": p.layers, "mask": mask}), p)


def stack(layer: Callable[[dict[str, Any]], Any], a: dict[str, Any]) -> Any:
    x = a["x"]
    for parameters in a["layers"]:
        x = layer({**a, "x": x, "parameters": parameters})
    return x


def flattened_patches(image: Any, patch: int) -> list[list[Any]]:
    inside = range(patch)
    corners = [(i, j) for i in range(0, len(image), patch) for j in range(0, len(image[0]), patch)]
    return [[x for di in inside for dj in inside for x in image[i + di][j + dj]] for i, j in corners]


def embedded(image: Any, p: Any) -> list[list[Any]]:
    rows = linear(flattened_patches(image, len(p.w[0])), [flat(w) for w in p.w])
    return [
        [u + v for u, v in zip(r, s, strict=True)] for r, s in zip([p.class_token, *rows], p.positions, strict=True)
    ]


def vit(a: dict[str, Any]) -> Any:
    x = embedded(a["image"], a["embedding"])
    allowed = [[True] * len(x)] * len(x)
    return normalized(stack(encoder, {"x": x, "layers": a["layers"], "mask": allowed, "norm": "pre"}), a["final_norm"])[
        0
    ]


def hats(a: int, b: int) -> list[list[Any]]:
    """Weights (b, a) of linear interpolation between the centres of cells."""

    def position(i: int) -> Any:
        return min(max(mp.mpf((2 * i + 1) * a - b) / (2 * b), mp.mpf(0)), mp.mpf(a - 1))

    return [[max(1 - abs(position(i) - j), mp.mpf(0)) for j in range(a)] for i in range(b)]


def interpolated(x: Any, slices: int, rows: int, columns: int) -> Any:
    shares = hats(len(x), slices), hats(len(x[0]), rows), hats(len(x[0][0]), columns)
    places = [(s, r, c) for s in range(len(x)) for r in range(len(x[0])) for c in range(len(x[0][0]))]

    def place(of_slices: Row, of_rows: Row, of_columns: Row) -> list[Any]:
        terms = [(of_slices[s] * of_rows[r] * of_columns[c], x[s][r][c]) for s, r, c in places]
        return [mp.fsum(w * v[k] for w, v in terms) for k in range(len(x[0][0][0]))]

    return [[[place(s, r, c) for c in shares[2]] for r in shares[1]] for s in shares[0]]


def gate(a: dict[str, Any]) -> list[Any]:
    x, p = a["x"], a["parameters"]
    signal = interpolated(a["gating"], len(x), len(x[0]), len(x[0][0]))

    def coefficient(v: Row, g: Row) -> Any:
        rows = zip(p.w_x, p.w_g, p.b_g, strict=True)
        hidden = [max(dot(w_x, v) + dot(w_g, g) + b, mp.mpf(0)) for w_x, w_g, b in rows]
        return sigmoid(dot(p.psi, hidden) + p.b_psi)

    def everywhere(compute: Callable[[Row, Any], Any], other: Any) -> Any:
        return [
            [[compute(v, g) for v, g in zip(row, s, strict=True)] for row, s in zip(plane, t, strict=True)]
            for plane, t in zip(x, other, strict=True)
        ]

    alpha = everywhere(coefficient, signal)
    return [everywhere(lambda v, weight: [weight * u for u in v], alpha), alpha]


def skip(a: dict[str, Any]) -> list[Any]:
    gated, _ = gate(a)
    signal = interpolated(a["gating"], len(gated), len(gated[0]), len(gated[0][0]))
    return [
        [[[*v, *g] for v, g in zip(row, s, strict=True)] for row, s in zip(plane, t, strict=True)]
        for plane, t in zip(gated, signal, strict=True)
    ]


def spatial(a: dict[str, Any]) -> list[Any]:
    places = [h for row in a["features"] for h in row]
    alpha = weights([[additive(a["state"], h, a) for h in places]], {"mask": [[True] * len(places)]})
    width = len(a["features"][0])
    return [pool(alpha, places)[0], [alpha[0][i : i + width] for i in range(0, len(places), width)]]


def convolved(a: dict[str, Any]) -> list[list[Any]]:
    x, w = a["x"], a["w"]
    before, zeros = (len(w) - 1) // 2, [0] * len(x[0])

    def token(j: int) -> Row:
        return x[j] if 0 <= j < len(x) else zeros

    return [
        [mp.fsum(dot(w[r][o], token(i + r - before)) for r in range(len(w))) for o in range(len(w[0]))]
        for i in range(len(x))
    ]


def received(a: dict[str, Any]) -> list[list[Any]]:
    sent = linear(a["x"], a["w"])
    return pool([[int(edge) for edge in row] for row in a["mask"]], sent)


def normalized_heads(scores: Any, values: Any, among: Callable[[int, int], bool], extra: Any = None) -> list[Any]:
    """Outputs and logarithms of every head; `extra` is one more score per head, a sink."""
    outputs, logarithms = [], []
    for r, (rows, v) in enumerate(zip(scores, values, strict=True)):
        sums, pooled = [], []
        for i, row in enumerate(rows):
            powers = [mp.exp(e) if among(i, j) else mp.mpf(0) for j, e in enumerate(row)]
            total = mp.fsum(powers) + (0 if extra is None else mp.exp(extra[r]))
            alone = choice("sink_alone") == "minus-infinity" and not any(among(i, j) for j in range(len(row)))
            sums.append(log_sum_exp(total) if total and not alone else mp.mpf("-inf"))
            weighted = ([p * x for x in v[j]] for j, p in enumerate(powers))
            pooled.append([mp.fsum(column) / (total or 1) for column in zip(*weighted, strict=True)])
        outputs.append(pooled)
        logarithms.append(sums)
    return [outputs, logarithms]


def log_sum_exp(total: Any) -> Any:
    """The logarithm of a sum of exponentials, to the chosen base."""
    return mp.log(total, 2 if choice("logarithms") == "base-2" else mp.e)


def for_query_heads(query: Any, x: Any) -> list[Any]:
    """For every query head, its key or value head."""
    group, interleaved = len(query) // len(x), choice("head_groups") == "interleaved"
    return [x[r % len(x) if interleaved else r // group] for r in range(len(query))]


def grouped(a: dict[str, Any]) -> list[Any]:
    keys, values = (for_query_heads(a["query"], x) for x in (a["key"], a["value"]))

    def away(i: int, j: int) -> int:
        n, m = len(a["query"][0]), len(a["key"][0])
        return j - i - (a["key_lengths"] - n) if choice("length_alignment") == "at-length" else beyond(i, j, n, m)

    def behind(i: int, j: int) -> int:
        return -away(i, j) if choice("alibi_distances") == "signed" else abs(away(i, j))

    scores = [
        [
            [scaled(q, k) + a["bias"][r][i][j] - a["slopes"][r] * behind(i, j) for j, k in enumerate(keys[r])]
            for i, q in enumerate(rows)
        ]
        for r, rows in enumerate(a["query"])
    ]

    def among(i: int, j: int) -> bool:
        earlier = away(i, j) <= 0 or not a.get("causal")
        return bool(a["mask"][i][j]) and j < a["key_lengths"] and earlier and in_window(away(i, j), a)

    return normalized_heads(scores, values, among, a["sinks"])


def attention_weights(a: dict[str, Any]) -> Any:
    m = range(len(a["key"][0]))
    return grouped({**a, "value": [[[int(i == j) for j in m] for i in m] for _ in a["key"]]})[0]


def with_slopes_and_sinks(
    a: dict[str, Any], query: Any, key: Any, value: Any, away: Callable[[int, int], int], keys_count: int
) -> list[Any]:
    """Attention to the first keys; ``away`` is the position of key j minus that of query i."""
    keys = for_query_heads(query, key)

    def behind(i: int, j: int) -> int:
        return -away(i, j) if choice("alibi_distances") == "signed" else abs(away(i, j))

    def among(i: int, j: int) -> bool:
        return j < keys_count and (away(i, j) <= 0 or not a.get("causal")) and in_window(away(i, j), a)

    scores = [
        [[scaled(q, k) - a["slopes"][r] * behind(i, j) for j, k in enumerate(keys[r])] for i, q in enumerate(rows)]
        for r, rows in enumerate(query)
    ]
    return normalized_heads(scores, for_query_heads(query, value), among, a["sinks"])


def in_sequences(a: dict[str, Any]) -> list[Any]:
    heads, ends = len(a["query"]), list(zip(a["query_ends"], a["key_ends"], strict=True))
    outputs: list[Any] = [[] for _ in range(heads)]
    logarithms: list[Any] = [[] for _ in range(heads)]
    for s, ((i, j), (k, m)) in enumerate(pairwise(ends)):
        used = m - j if a.get("key_lengths") is None else min(m - j, int(a["key_lengths"][s]))

        def away(row: int, key: int, n: int = k - i, keys: int = used) -> int:
            return beyond(row, key, n, keys)

        query, key, value = (
            [x[start:end] for x in rows]
            for rows, start, end in ((a["query"], i, k), (a["key"], j, m), (a["value"], j, m))
        )
        heads_of_sequence = with_slopes_and_sinks(a, query, key, value, away, used)
        for r in range(heads):
            outputs[r] += heads_of_sequence[0][r]
            logarithms[r] += heads_of_sequence[1][r]
    return [outputs, logarithms]


def in_pages(a: dict[str, Any]) -> list[Any]:
    def rows(pages: Any) -> list[Any]:
        return [[row for t in a["block_table"] for row in pages[t][h]] for h in range(len(pages[0]))]

    first = a["key_lengths"] - len(a["query"][0])
    keys, values = rows(a["key_pages"]), rows(a["value_pages"])
    return with_slopes_and_sinks(a, a["query"], keys, values, lambda i, j: j - (first + i), a["key_lengths"])


def latent(a: dict[str, Any]) -> list[Any]:
    outputs = []
    for r, rows in enumerate(a["query"]):
        keys = [[*k, *t] for k, t in zip(linear(a["latent"], a["w_k"][r]), a["key_rope"], strict=True)]
        queries = [[*q, *t] for q, t in zip(rows, a["query_rope"][r], strict=True)]
        outputs.append(attend(scaled, queries, keys, linear(a["latent"], a["w_v"][r]), a))
    return outputs


def indexer_score(i: int, j: int, a: dict[str, Any]) -> Any:
    return mp.fsum(w * max(dot(q[i], a["key"][j]), 0) for w, q in zip(a["weights"][i], a["query"], strict=True))


def to_selected(a: dict[str, Any]) -> list[Any]:
    query, n, m = a["query"], len(a["query"][0]), len(a["key"][0])
    by_head = zip(query, *(for_query_heads(query, a[x]) for x in ("key", "value", "indices")), strict=True)
    return [
        attend(scaled, q, k, v, {**a, "mask": [[j in rows[i] for j in range(m)] for i in range(n)]})
        for q, k, v, rows in by_head
    ]


def in_block(i: int, j: int, a: dict[str, Any]) -> bool:
    row, column = i // a["query_block_size"], j // a["key_block_size"]
    return row < len(a["blocks"]) and column < len(a["blocks"][0]) and bool(a["blocks"][row][column])


def merged(a: dict[str, Any]) -> list[Any]:
    base = 2 if choice("logarithms") == "base-2" else mp.e
    powers = [mp.power(base, x) for x in a["log_sum_exps"]]
    total = mp.fsum(powers)
    columns = zip(*a["outputs"], strict=True)
    return [[dot(powers, column) / total for column in columns], log_sum_exp(total)]


def turned(row: Row, angles: Row) -> list[Any]:
    half, new = len(angles), list(row)
    for i, angle in enumerate(angles):
        first, second = (i, i + half) if choice("rotary_pairs") == "halves" else (2 * i, 2 * i + 1)
        new[first] = row[first] * mp.cos(angle) - row[second] * mp.sin(angle)
        new[second] = row[first] * mp.sin(angle) + row[second] * mp.cos(angle)
    return new


def turned_by_position(a: dict[str, Any]) -> list[list[Any]]:
    rows = zip(a["positions"], a["x"], strict=True)
    return [
        turned(row, [t * mp.power(10_000, -mp.mpf(2 * i) / len(row)) for i in range(len(row) // 2)]) for t, row in rows
    ]


def turned_along_axes(a: dict[str, Any]) -> list[list[Any]]:
    columns = list(zip(*a["frequencies"], strict=True))
    return [turned(row, [dot(t, column) for column in columns]) for t, row in zip(a["positions"], a["x"], strict=True)]


def rotary_frequencies(pairs: int) -> list[Any]:
    theta, factor, length, low, high = 500_000, 8, 8192, 1, 4
    unscaled = [mp.power(theta, -mp.mpf(i) / pairs) for i in range(pairs)]
    start, end = (pairs * mp.log(length / (2 * mp.pi * turns)) / mp.log(theta) for turns in (high, low))
    if choice("rotary_ramp") == "whole-indices":
        start, end = mp.floor(start), mp.ceil(end)
    frequencies = []
    for i, frequency in enumerate(unscaled):
        rotations = length * frequency / (2 * mp.pi)
        by_rotations = choice("rotary_ramp") == "rotations"
        ramp = (rotations - low) / (high - low) if by_rotations else (end - i) / (end - max(start, 0))
        share = min(max(ramp, 0), 1)
        frequencies.append(share * frequency + (1 - share) * frequency / factor)
    return frequencies


def bucket_of(distance: int, buckets: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    growth = mp.log(mp.mpf(distance) / exact) / mp.log(mp.mpf(128) / exact)
    return min(buckets - 1, exact + int(mp.floor((buckets - exact) * growth + mp.mpf(10) ** -12)))


def bias_of(a: dict[str, Any]) -> list[Any]:
    half = len(a["table"]) // 2
    ahead = [[t - s for t in a["key_positions"]] for s in a["query_positions"]]
    return [
        [[a["table"][half * (x > 0) + bucket_of(abs(x), half)][head] for x in row] for row in ahead]
        for head in range(len(a["table"][0]))
    ]


def path_to_root(parents: Any, token: int) -> list[int]:
    parent = parents[token]
    return [token, *(path_to_root(parents, parent) if 0 <= parent < token else [])]


def slopes(heads: int) -> list[Any]:
    below = 2 ** (heads.bit_length() - 1)
    first = [mp.power(2, -mp.mpf(8 * (r + 1)) / below) for r in range(below)]
    return first + [mp.power(2, -mp.mpf(8 * (r + 1)) / (2 * below)) for r in range(0, 2 * (heads - below), 2)]


def terms(*sizes: int) -> int:
    """The number of terms of a sum over these indices, counted one by one."""
    return sum(1 for _ in product(*map(range, sizes)))


def layers_until_ranges_meet(t: int, taps: int) -> int:
    layers, covered = 0, 1
    while covered < t:
        layers, covered = layers + 1, covered + taps - 1
    return layers


def cell(d: int, h: int) -> int:
    return terms(d, h) + terms(h, h)


def attention_terms(n: int, m: int, d_k: int, d_v: int) -> int:
    return terms(n, m, d_k) + terms(n, m, d_v)


def prefixes(n: int, d: int) -> int:
    return sum(attention_terms(1, i + 1, d, d) for i in range(n))


def decoder_terms(m: int, n: int, d: int) -> int:
    return prefixes(n, d) + attention_terms(n, m, d, d) + terms(6, n, d, d) + terms(2, m, d, d)


def of_heads(a: dict[str, Any]) -> list[int]:
    n, m, heads, p_o, p_v = (a[name] for name in ("n", "m", "heads", "p_o", "p_v"))
    each = ((n, a["p_q"], a["d_q"]), (m, a["p_q"], a["d_k"]), (m, p_v, a["d_v"]), (n, p_o, p_v))
    weights = sum(terms(heads, *sizes[1:]) for sizes in each)
    total = sum(terms(heads, *sizes) for sizes in each) + heads * attention_terms(n, m, a["p_q"], p_v)
    return [total, weights, 4, 1]


def with_attention(a: dict[str, Any]) -> list[int]:
    m, n, d, h, s = (a[name] for name in "mndhs")
    context = terms(s, h) + terms(m, s, h) + terms(m, s) + terms(m, h)
    parameters = cell(d, h) + h + cell(d + h, h) + h + terms(2, s, h) + s
    return [m * cell(d, h) + n * (context + cell(d + h, h)), parameters, m + 4 * n, 3]


COUNTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "convolution_complexity": lambda a: [
        terms(a["t"], a["taps"], a["d_x"], a["p_o"]),
        terms(a["taps"], a["d_x"], a["p_o"]),
        1,
        layers_until_ranges_meet(a["t"], a["taps"]),
    ],
    "rnn_complexity": lambda a: [a["t"] * cell(a["d"], a["h"]), cell(a["d"], a["h"]) + a["h"], a["t"], a["t"]],
    "self_attention_complexity": lambda a: [attention_terms(a["n"], a["n"], a["d"], a["d"]), 0, 2, 1],
    "projected_self_attention_complexity": lambda a: [
        terms(a["n"], a["d_x"], 2 * a["d_k"] + a["d_v"]) + attention_terms(a["n"], a["n"], a["d_k"], a["d_v"]),
        terms(a["d_x"], 2 * a["d_k"] + a["d_v"]),
        3,
        1,
    ],
    "cross_attention_complexity": lambda a: [
        terms(a["n"], a["d_x"], a["d_k"])
        + terms(a["m"], a["d_m"], a["d_k"] + a["d_v"])
        + attention_terms(a["n"], a["m"], a["d_k"], a["d_v"]),
        terms(a["d_x"], a["d_k"]) + terms(a["d_m"], a["d_k"] + a["d_v"]),
        3,
        1,
    ],
    "multi_head_attention_complexity": of_heads,
    "seq2seq_complexity": lambda a: [
        (a["m"] + a["n"]) * cell(a["d"], a["h"]),
        2 * (cell(a["d"], a["h"]) + a["h"]),
        a["m"] + a["n"],
        a["m"] + a["n"],
    ],
    "seq2seq_attention_complexity": with_attention,
    "decoder_attention_complexity": lambda a: [decoder_terms(a["m"], a["n"], a["d"]), terms(8, a["d"], a["d"]), 8, 1],
    "encoder_decoder_attention_complexity": lambda a: [
        decoder_terms(a["m"], a["n"], a["d"])
        + terms(4, a["m"], a["d"], a["d"])
        + attention_terms(a["m"], a["m"], a["d"], a["d"]),
        terms(12, a["d"], a["d"]),
        8,
        2,
    ],
}
"""Costs of layers: multiply-adds, parameters, sequential operations, path length; sizes of at least 2."""

FORMULAS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dot_scores": every_pair(lambda q, k, a: dot(q, k)),
    "scaled_dot_scores": every_pair(lambda q, k, a: scaled(q, k)),
    "additive_scores": every_pair(additive),
    "general_scores": every_pair(lambda q, k, a: bilinear(q, a["w"], k)),
    "location_scores": lambda a: linear(a["query"], a["w"]),
    "gaussian_scores": every_pair(lambda q, k, a: half_square(q, k)),
    "softmax": lambda a: weights(a["scores"], a),
    "mean_normalization": count_normalised,
    "causal_mask": lambda a: [[j <= i for j in range(a["m"])] for i in range(a["n"])],
    "padding_mask": lambda a: [j < a["lengths"] for j in range(a["m"])],
    "attention_pooling": lambda a: pool(a["weights"], a["value"]),
    "average_pooling": average,
    "nadaraya_watson": attention(lambda q, k, a: half_square(q, k)),
    "dot_product_attention": attention(lambda q, k, a: dot(q, k)),
    "scaled_dot_product_attention": attention(lambda q, k, a: scaled(q, k)),
    "general_attention": attention(lambda q, k, a: bilinear(q, a["w"], k)),
    "additive_attention": attention(additive),
    "self_attention": lambda a: attend(scaled, a["x"], a["x"], a["x"], a),
    "projected_self_attention": lambda a: projected(a["x"], a["x"], a),
    "cross_attention": lambda a: projected(a["x"], a["memory"], a),
    "multi_head_attention": heads,
    "sinusoidal_positional_encoding": lambda a: table(lambda t, c: sinusoid(t, c, a["d"]), a["n"], a["d"]),
    "bahdanau_context": lambda a: attend(
        lambda q, k: additive(q, k, a), [a["state"]], a["annotations"], a["annotations"], {"mask": [a["mask"]]}
    )[0],
    "luong_context_dot": lambda a: context(lambda h, j: dot(a["state"], h), a),
    "luong_context_general": lambda a: context(lambda h, j: bilinear(a["state"], a["w"], h), a),
    "luong_context_location": lambda a: context(lambda h, j: dot(a["w"][j], a["state"]), a),
    "biased_multi_head_attention": biased_heads,
    "multi_head_additive_attention": additive_heads,
    "concat_heads_attention": join_heads,
    "split_heads": lambda a: [
        [row[r * len(row) // a["heads"] : (r + 1) * len(row) // a["heads"]] for row in a["x"]]
        for r in range(a["heads"])
    ],
    "merge_heads": lambda a: side_by_side(a["x"]),
    "learned_positions": lambda a: [a["table"][t] for t in range(a["n"])],
    "add_positions": lambda a: [
        [u + v for u, v in zip(r, s, strict=True)] for r, s in zip(a["x"], a["p"], strict=True)
    ],
    "attentional_state": lambda a: [mp.tanh(dot([*a["state"], *a["context"]], w)) for w in a["w"]],
    "embed": lambda a: [a["table"][w] for w in a["tokens"]],
    "output_distribution": lambda a: distribution(a["state"], a["w"], a["b"]),
    "encoder_context": lambda a: [[0] * len(a["states"][0]), *a["states"]][a["lengths"]],
    "decoder_step": decoder,
    "teacher_forced_decode": teacher_forced,
    "greedy_decode": lambda a: beam({**a, "beams": 1}),
    "beam_decode": beam,
    "concat_output": lambda a: [*a["context"], *a["state"]],
    "concat_positions": lambda a: [[*r, *s] for r, s in zip(a["x"], a["p"], strict=True)],
    "rnn_cell": rnn_cell,
    "rnn_output": lambda a: affine(a["state"], a["w_hq"], a["b_q"]),
    "layer_norm": lambda a: normalized([a["x"]], a["parameters"], a.get("epsilon", EPSILON))[0],
    "linear_attention": linear_recurrence,
    "short_convolution": convolved_with_state,
    "rolling_buffer_positions": last_stored,
    "positions_from_mask": counted_tokens,
    "rms_norm": lambda a: rms_normalized(a["x"], a),
    "add_rms_norm": lambda a: (lambda z: [rms_normalized(z, a), z])(
        [x + r for x, r in zip(a["x"], a["residual"], strict=True)]
    ),
    "feed_forward": lambda a: perceptron(a["x"], a["parameters"]),
    "gelu": lambda a: [x * normal_probability(x) for x in a["x"]],
    "gated_feed_forward": lambda a: gated(a["x"], a["parameters"]),
    "gru_cell": gru,
    "lstm_cell": lstm,
    **{kind: sequence(cell) for kind, cell in CELLS.items()},
    **{f"bidirectional_{kind}": both_ways(cell) for kind, cell in CELLS.items()},
    **{f"stacked_{kind}": stacked(cell) for kind, cell in CELLS.items()},
    "rnn_self_attention": earlier_states,
    "encoder_layer": encoder,
    "encoder_stack": lambda a: stack(encoder, a),
    "decoder_layer": masked_decoder,
    "decoder_stack": lambda a: stack(masked_decoder, a),
    "cached_decoder_step": cached_step,
    "encoder_decoder": sequence_to_sequence,
    "decoder_only": lambda a: language_model(a, causal=True),
    "encoder_only": lambda a: language_model(a, causal=False),
    "patchify": lambda a: flattened_patches(a["image"], a["patch"]),
    "patch_embedding": lambda a: embedded(a["image"], a["parameters"]),
    "vit_encoder": vit,
    "interpolate": lambda a: interpolated(a["x"], a["slices"], a["rows"], a["columns"]),
    "attention_gate": gate,
    "attention_skip": skip,
    "spatial_attention": spatial,
    **COUNTS,
    "convolution": convolved,
    "graph_layer": received,
    "grouped_query_attention": grouped,
    "attention_weights": attention_weights,
    "gated_output": lambda a: [
        [x / (1 + mp.exp(-g)) for x, g in zip(row, gates, strict=True)]
        for row, gates in zip(a["x"], a["gate"], strict=True)
    ],
    "variable_length_attention": in_sequences,
    "paged_attention": in_pages,
    "latent_attention": latent,
    "merge_attention": merged,
    "indexer_scores": lambda a: table(lambda i, j: indexer_score(i, j, a), len(a["query"][0]), len(a["key"])),
    "top_keys": lambda a: [[x in sorted(row)[-a["count"] :] for x in row] for row in a["scores"]],
    "selected_attention": to_selected,
    "block_mask": lambda a: table(lambda i, j: in_block(i, j, a), a["n"], a["m"]),
    "rotary_embedding": turned_by_position,
    "axial_rotary_embedding": turned_along_axes,
    "rotary_frequencies": lambda a: rotary_frequencies(a["pairs"]),
    "alibi_slopes": lambda a: slopes(a["heads"]),
    "sliding_window_mask": lambda a: [
        [in_window(beyond(i, j, a["n"], a["m"]), a) for j in range(a["m"])] for i in range(a["n"])
    ],
    "sigmoid_attention": sigmoid_weighted,
    "relative_position_bias": bias_of,
    "tree_mask": lambda a: [
        [j in path_to_root(a["parents"], i) for j in range(len(a["parents"]))] for i in range(len(a["parents"]))
    ],
    "document_mask": lambda a: [[d == e for e in a["key_documents"]] for d in a["query_documents"]],
    "dropout": lambda a: [
        [w if kept else mp.mpf(0) for w, kept in zip(row, keep, strict=True)]
        for row, keep in zip(a["weights"], a["keep"], strict=True)
    ],
    "dot_product_mean": lambda a: dot(a["mean"], a["mean"]),
    "dot_product_variance": lambda a: (
        2 * a["sigma"] ** 2 * dot(a["mean"], a["mean"]) + len(a["mean"]) * a["sigma"] ** 4
    ),
}
"""Formulas of one element of the batch; ``a`` are its arguments by name, as nested lists of mpmath's numbers."""

WINDOW = (1, None)
"""The window under which choices of its left side differ."""

CHOICES_AND_NAMES: list[tuple[dict[str, str], str]] = [({}, name) for name in OPERATIONS]
CHOICES_AND_NAMES += [
    ({q: c}, o.name) for o in OPERATIONS.values() for q, choices in choices_of_formula(o).items() for c in choices[1:]
]
"""Every operation, also under the non-normative choices that its formula asks for."""

FLAGS = {o.name: (False, True) if o.flag else (False,) for o in OPERATIONS.values()}
"""The values of ``causal`` that each operation is tried with."""


def exactly(x: Any) -> Any:
    """A number, or nested lists of them, as mpmath's: nothing is rounded, not even a longdouble."""
    if isinstance(x, np.ndarray) and x.ndim:
        return [exactly(row) for row in x]
    if not isinstance(x, np.ndarray | np.generic):
        return x
    if x.dtype.kind != "f":
        return int(x)
    high = np.float64(x)
    if np.isinf(high):
        return mp.mpf(float(high))
    return mp.mpf(float(high)) + mp.mpf(float(np.subtract(x, high)))


def by_definition(name: str, arguments: dict[str, Any], result: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """Pairs of a computed array and the formula's, for every element of the batch."""
    operation = OPERATIONS[name]
    batch = bind(operation, arguments).batch
    leaves = [leaf for leaf, _ in pair_leaves(operation.call, arguments) if isinstance(leaf, Leaf)]
    ranks = {leaf.path: len(leaf.core) for leaf in leaves if leaf.batched}

    def element(path: str, x: Any, index: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, batch + x.shape[x.ndim - ranks[path] :])[index] if path in ranks else x

    def by_formula(index: tuple[int, ...]) -> Any:
        return FORMULAS[name](map_tree(arguments, lambda path, x: exactly(element(path, x, index))))

    for index in np.ndindex(batch):
        arrays = [x[index] if leaf.batched else x for leaf, x in results(operation, result)]
        yield from zip(arrays, [by_formula(index)] if len(arrays) == 1 else by_formula(index), strict=True)


def flat(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, list) else [x]


def error(got: np.ndarray, expected: Any) -> tuple[Any, Any]:
    """The largest error and the largest finite number."""
    numbers = flat(expected)
    assert got.size == len(numbers)
    pairs = zip(flat(exactly(got)), numbers, strict=True)
    return max(0 if a == b else abs(a - b) for a, b in pairs), max(
        (abs(x) for x in numbers if not mp.isinf(x)), default=0
    )


@pytest.mark.parametrize(
    ("choices", "name", "causal"), [(*c, causal) for c in CHOICES_AND_NAMES for causal in FLAGS[c[1]]]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_reference_is_the_formula(
    name: str, choices: dict[str, str], dtype: Any, seed: int, causal: bool, draw: Any
) -> None:
    arguments = draw(name, dtype, seed, causal=causal, batch=(2,) if seed else ())
    with_sinks = name in ("grouped_query_attention", "attention_weights")
    if "fully_masked" in choices and not with_sinks:
        arguments = without_keys_for_first_query(OPERATIONS[name], arguments)
    if "window_left" in choices:
        arguments["window"] = WINDOW
    with arithmetic(lambda numbers: numbers.astype(dtype)), choosing(**choices):
        got = REFERENCE[name](**arguments)
        pairs = list(by_definition(name, arguments, got))
    for x, expected in pairs:
        worst, largest = error(x, expected)
        if x.dtype == bool:
            assert worst == 0
        else:
            unit = mp.mpf(float(np.finfo(dtype).eps)) / 2
            last = int(max(arguments["positions"].flat)) if "positions" in arguments else 0  # angles are as large
            assert worst <= ROUNDINGS * unit * max(1, largest, last)


@pytest.mark.parametrize("length_penalty", [1.0, -2.0])
@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_length_penalties_are_the_formula(dtype: Any, length_penalty: float, draw: Any) -> None:
    arguments = {**draw("beam_decode", dtype, 0, batch=(3,)), "length_penalty": length_penalty}
    with arithmetic(lambda numbers: numbers.astype(dtype)):
        pairs = list(by_definition("beam_decode", arguments, REFERENCE["beam_decode"](**arguments)))
    unit = mp.mpf(float(np.finfo(dtype).eps)) / 2
    for x, expected in pairs:
        worst, largest = error(x, expected)
        assert worst <= (ROUNDINGS * unit * max(1, largest) if x.dtype == dtype else 0)


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_angles_of_late_positions_are_exact(dtype: Any) -> None:
    n, d = 600, 6
    with arithmetic(lambda numbers: numbers.astype(dtype)):
        encoding = sinusoidal_positional_encoding(n, d)
    unit = mp.mpf(float(np.finfo(dtype).eps)) / 2
    for t in (1, 17, 599):
        for column in range(d):
            worst, _ = error(encoding[t, column], sinusoid(t, column, d))
            assert worst <= ROUNDINGS * unit * max(1, t / mp.power(10_000, mp.mpf(2 * (column // 2)) / d))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_sigmoids_keep_all_digits(dtype: Any) -> None:
    """(1 + tanh(x/2))/2 has none left at −40."""
    x = np.array([-80, -40, -20.5, -3, -1e-9, 0, 1e-9, 3, 20.5, 40, 80], dtype)
    unit = mp.mpf(float(np.finfo(dtype).eps)) / 2
    for point, got in zip(exactly(x), exactly(plain_sigmoid(x)), strict=True):
        expected = 1 / (1 + mp.exp(-point))
        assert abs(got - expected) <= 4 * unit * expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_logarithms_of_weights_near_1_keep_all_digits(dtype: Any) -> None:
    """Beside 1, exp(−40) is nothing: the logarithm of the sum would be 0."""
    scores = np.array([[0, -40, -45], [30, -20, -1], [1, 1, 1], [-7, 0.5, 2]], dtype)
    unit = mp.mpf(float(np.finfo(dtype).eps)) / 2
    for row, got in zip(exactly(scores), exactly(log_softmax(scores)), strict=True):
        total = mp.log(mp.fsum(mp.exp(x) for x in row))
        for x, y in zip(row, got, strict=True):
            assert abs(y - (x - total)) <= 8 * unit * abs(x - total)


def test_every_operation_has_a_formula() -> None:
    missing = sorted(set(OPERATIONS) ^ set(FORMULAS))
    assert not missing, f"expected a second formula of each operation in this file; amend {missing}"
