"""Suite of Bahdanau's decoder, against its loop over steps written with ``torch.nn``."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from attnspec.backends import pytorch
from attnspec.spec import AttentionDecoderParameters, RNNParameters
from benchmarks.case import FORWARD, WITH_BACKWARD, Case
from benchmarks.suites.named_rivals import Function, Rival, case
from benchmarks.suites.settings import Inputs, Settings

BATCH, SOURCE, WIDTH, VOCABULARY = 16, 20, 64, 500
EOS = 0


def cases(settings: Settings) -> Iterator[Case]:
    """Cases of n steps: teacher forcing and greedy search."""
    for n in settings.chosen((1, 12, 48), (3,)):
        sizes = {"B": BATCH, "n": n, "m": SOURCE, "d": WIDTH, "vocabulary": VOCABULARY}
        for mode in (FORWARD, WITH_BACKWARD):
            yield case("decoders", "teacher forcing", mode, sizes, n, teacher_forcing(Inputs(settings.device), n))
        yield case("decoders", "greedy search", FORWARD, sizes, n, greedy_search(Inputs(settings.device), n))


def _parameters(weights: Sequence[Tensor]) -> AttentionDecoderParameters[Tensor]:
    embedding, w_q, w_k, w_v, w_xh, w_hh, b_h, w_o, b_o = weights
    return AttentionDecoderParameters(embedding, w_q, w_k, w_v, RNNParameters(w_xh, w_hh, b_h), w_o, b_o)


def _draw_inputs(draw: Inputs) -> tuple[Tensor, Tensor, list[Tensor]]:
    d, v, scale = WIDTH, VOCABULARY, WIDTH**-0.5
    state, annotations = draw.normal(BATCH, d), draw.normal(BATCH, SOURCE, d)
    shapes = ((v, d), (d, d), (d, d), (d,), (2 * d, d), (d, d), (d,), (v, d), (v,))
    return state, annotations, [draw.normal(*shape, scale=scale) for shape in shapes]


class Decoder(nn.Module):
    """Decoder written with modules of ``torch.nn``; callers project the source once."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        d, v = WIDTH, VOCABULARY
        self.embedding, self.cell, self.output = nn.Embedding(v, d), nn.RNNCell(2 * d, d), nn.Linear(d, v)
        self.w_q, self.w_k, self.w_v = nn.Linear(d, d, False), nn.Linear(d, d, False), nn.Linear(d, 1, False)
        p = _parameters(weights)
        self.cell.bias_hh.requires_grad_(False)
        self.trained = [
            self.embedding.weight, self.w_q.weight, self.w_k.weight, self.w_v.weight, self.cell.weight_ih,
            self.cell.weight_hh, self.cell.bias_ih, self.output.weight, self.output.bias,
        ]  # fmt: skip
        values = (
            p.embedding, p.w_q, p.w_k, p.w_v[None], p.cell.w_xh.mT, p.cell.w_hh.mT, p.cell.b_h, p.w_o, p.b_o,
        )  # fmt: skip
        with torch.no_grad():
            self.cell.bias_hh.zero_()
            for parameter, value in zip(self.trained, values, strict=True):
                parameter.copy_(value)
        self.to(weights[0].device)

    def step(self, embedded: Tensor, state: Tensor, projected: Tensor, annotations: Tensor) -> Tensor:
        """Return the next state."""
        hidden = torch.tanh(self.w_q(state).unsqueeze(1) + projected)
        weights = self.w_v(hidden).squeeze(-1).softmax(-1)
        context = torch.bmm(weights.unsqueeze(1), annotations).squeeze(1)
        following: Tensor = self.cell(torch.cat((embedded, context), -1), state)
        return following


def _rearrange(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    embedding, w_q, w_k, w_v, w_xh, w_hh, *others = gradients
    return [embedding, w_q, w_k, w_v[0], w_xh.mT, w_hh.mT, *others]


def _work(n: int) -> float:
    """FLOP of n steps (context, then query, cell and output), and of the keys, projected once."""
    of_step = SOURCE * 4.0 * WIDTH + 2.0 * WIDTH * (4 * WIDTH + VOCABULARY)
    return BATCH * (n * of_step + 2.0 * SOURCE * WIDTH**2)


def teacher_forcing(draw: Inputs, n: int) -> Function:
    """Teacher forcing: log-probabilities of all tokens."""
    state, annotations, weights = _draw_inputs(draw)
    tokens = torch.randint(VOCABULARY, (BATCH, n), generator=draw.generator).to(state.device)
    decoder = Decoder(weights)

    def formula(state: Tensor, annotations: Tensor, *weights: Tensor) -> Tensor:
        p, states = _parameters(weights), []
        for t in range(n):
            hidden = (state @ p.w_q.mT).unsqueeze(1) + annotations @ p.w_k.mT
            context = ((hidden.tanh() @ p.w_v).softmax(-1).unsqueeze(1) @ annotations).squeeze(1)
            inputs = torch.cat((p.embedding[tokens[:, t]], context), -1)
            state = (inputs @ p.cell.w_xh + state @ p.cell.w_hh + p.cell.b_h).tanh()
            states.append(state)
        return (torch.stack(states, 1) @ p.w_o.mT + p.b_o).log_softmax(-1)

    def loop(state: Tensor, annotations: Tensor) -> Tensor:
        projected, states = decoder.w_k(annotations), []
        for embedded in decoder.embedding(tokens).unbind(1):
            state = decoder.step(embedded, state, projected, annotations)
            states.append(state)
        logarithms: Tensor = decoder.output(torch.stack(states, 1)).log_softmax(-1)
        return logarithms

    return Function(
        lambda state, source, *w: pytorch.teacher_forced_decode(tokens, state, source, _parameters(w))[0], formula,
        (state, annotations), weights, {"torch.nn": Rival(loop, decoder.trained, _rearrange)}, _work(n),
    )  # fmt: skip


def greedy_search(draw: Inputs, n: int) -> Function:
    """Greedy search: log-probabilities of its sentences."""
    state, annotations, weights = _draw_inputs(draw)
    first = torch.randint(1, VOCABULARY, (BATCH,), generator=draw.generator).to(state.device)
    weights[-1][EOS] = -100.0  # prevents <eos>, so that all sentences take n steps
    decoder = Decoder(weights)

    def greedy_scores(decoder: Decoder, state: Tensor, annotations: Tensor) -> Tensor:
        projected, last = decoder.w_k(annotations), first
        score, ended = state.new_zeros(BATCH), torch.zeros_like(first, dtype=torch.bool)
        tokens = first.new_full((BATCH, n), EOS)
        for t in range(n):
            state = decoder.step(decoder.embedding(last), state, projected, annotations)
            best, place = decoder.output(state).log_softmax(-1).max(-1)
            last, score = torch.where(ended, EOS, place), score + torch.where(ended, 0.0, best)
            tokens[:, t], ended = last, last == EOS
            if ended.all():
                break
        return score

    def formula(state: Tensor, annotations: Tensor, *weights: Tensor) -> Tensor:
        return greedy_scores(Decoder(weights).to(state.dtype), state, annotations)

    return Function(
        lambda state, source, *w: pytorch.greedy_decode(first, state, source, _parameters(w), n, EOS)[1], formula,
        (state, annotations), weights,
        {"torch.nn": Rival(lambda *inputs: greedy_scores(decoder, *inputs), decoder.trained, _rearrange)}, _work(n),
    )  # fmt: skip
