"""Modules of sequence-to-sequence attention: Bahdanau's and Luong's, and a recurrent decoder."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes
from attnspec.backends.pytorch.nn.recurrent import RNNCell
from attnspec.backends.pytorch.nn.scorer import AdditiveScorer
from attnspec.backends.pytorch.seq2seq import (
    bahdanau_context,
    beam_decode,
    decoder_step,
    greedy_decode,
    luong_context_dot,
    luong_context_general,
    luong_context_location,
    teacher_forced_decode,
)
from attnspec.spec import AttentionDecoderParameters

__all__ = ["BahdanauAttention", "BahdanauDecoder", "LuongAttention"]


class BahdanauAttention(AdditiveScorer):
    """Bahdanau's context: additive attention of a decoder's state over the annotations.

    Args:
        state_dim: features of the state, d_s.
        annotation_dim: features of an annotation, d_h.
        hidden_dim: hidden units of the scorer, h.

    Shape: state (*batch, d_s), annotations (*batch, m, d_h); result (*batch, d_h). The mask is boolean, True = may
        attend, and broadcasts to (*batch, m). Weights w_q (h, d_s), w_k (h, d_h), w_v (h).
    Initialisation: each as ``nn.Linear``'s weight: uniform within 1/√d_s, 1/√d_h and 1/√h.
    Errors: ``ValueError`` for sizes below 1.
    Source: operation ``bahdanau_context``.

    >>> attention = BahdanauAttention(16, 32, hidden_dim=8)
    >>> attention(torch.randn(3, 16), torch.randn(3, 7, 32)).shape
    torch.Size([3, 32])
    """

    named = MappingProxyType({"state_dim": "d_q", "annotation_dim": "d_k", "hidden_dim": "h"})

    def __init__(
        self, state_dim: int, annotation_dim: int, hidden_dim: int, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state_dim, annotation_dim, hidden_dim, device=device, dtype=dtype)

    def forward(self, state: Tensor, annotations: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The context."""
        return bahdanau_context(state, annotations, self.w_q, self.w_k, self.w_v, mask=mask)

    if TYPE_CHECKING:
        __call__ = forward


class BahdanauDecoder(Recorded[AttentionDecoderParameters[Tensor]]):
    """A recurrent decoder with Bahdanau's attention.

    Args:
        num_embeddings: tokens of the vocabulary.
        embedding_dim: features of a token, d_y.
        hidden_size: features of a state, d_s.
        annotation_dim: features of an annotation, d_h.
        attention_dim: hidden units of the scorer, h.

    Shape: tokens (*batch, t), of an integer dtype, state (*batch, d_s), annotations (*batch, m, d_h); the result is a
        pair, log-probabilities (*batch, t, vocabulary) and the last state. The mask is boolean, True = may attend, and
        broadcasts to (*batch, m). Weights are embedding (vocabulary, d_y), w_q (h, d_s), w_k (h, d_h),
        w_v (h), w_o (vocabulary, d_s), b_o (vocabulary) and those of ``cell``, whose inputs have d_y + d_h features.
    Initialisation: the embedding as ``nn.Embedding``'s weight, standard normal; the scorer as in
        :class:`BahdanauAttention`, the cell as :class:`RNNCell`; w_o and b_o as in ``nn.Linear``, within 1/√d_s.
    Errors: ``ValueError`` for sizes below 1.
    Source: operations ``teacher_forced_decode``, ``decoder_step``, ``greedy_decode`` and ``beam_decode``. Keys of the
        annotations are prepared once for all steps.

    >>> decoder = BahdanauDecoder(9, 4, 16, annotation_dim=32, attention_dim=8)
    >>> annotations, tokens = torch.randn(3, 7, 32), torch.randint(9, (3, 5))
    >>> log_probabilities, state = decoder(tokens[:, :-1], torch.zeros(3, 16), annotations)
    >>> loss = nn.functional.nll_loss(log_probabilities.flatten(0, 1), tokens[:, 1:].flatten())
    >>> probabilities, state = decoder.step(tokens[:, -1], state, annotations)
    >>> probabilities.shape
    torch.Size([3, 9])
    >>> sentences, scores = decoder.beam_decode(tokens[:, 0], torch.zeros(3, 16), annotations, steps=6, eos=1, beams=4)
    >>> sentences.shape, scores.shape
    (torch.Size([3, 6]), torch.Size([3]))
    """

    kind = AttentionDecoderParameters
    parts: ClassVar[Mapping[str, Any]] = {"cell": RNNCell}

    def __init__(
        self, num_embeddings: int, embedding_dim: int, hidden_size: int, annotation_dim: int, attention_dim: int, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"num_embeddings": num_embeddings, "embedding_dim": embedding_dim, "hidden_size": hidden_size}
        sizes |= {"annotation_dim": annotation_dim, "attention_dim": attention_dim}
        check_sizes("BahdanauDecoder", **sizes)
        self.embedding = parameter(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.w_q = parameter(attention_dim, hidden_size, device=device, dtype=dtype)
        self.w_k = parameter(attention_dim, annotation_dim, device=device, dtype=dtype)
        self.w_v = parameter(attention_dim, device=device, dtype=dtype)
        self.cell = RNNCell(embedding_dim + annotation_dim, hidden_size, device=device, dtype=dtype)
        self.w_o = parameter(num_embeddings, hidden_size, device=device, dtype=dtype)
        self.b_o = parameter(num_embeddings, device=device, dtype=dtype)
        self._draw()

    def _draw(self) -> None:
        nn.init.normal_(self.embedding)
        for w in (self.w_q, self.w_k, self.w_v):
            draw(linear_bound(w.shape[-1]), w)
        draw(linear_bound(self.w_o.shape[-1]), self.w_o, self.b_o)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        super().reset_parameters()
        self._draw()

    def extra_repr(self) -> str:
        """Show the sizes."""
        (tokens, d_y), (hidden, d_s), d_h = self.embedding.shape, self.w_q.shape, self.w_k.shape[1]
        sizes = f"num_embeddings={tokens}, embedding_dim={d_y}, hidden_size={d_s}"
        return f"{sizes}, annotation_dim={d_h}, attention_dim={hidden}"

    def forward(
        self, tokens: Tensor, state: Tensor, annotations: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing: log-probabilities of each next token, and the last state."""
        return teacher_forced_decode(tokens, state, annotations, self.record(), mask=mask)

    if TYPE_CHECKING:
        __call__ = forward

    def step(
        self, token: Tensor, state: Tensor, annotations: Tensor, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return probabilities (*batch, vocabulary) after ``token`` (*batch), and the next state."""
        return decoder_step(token, state, annotations, self.record(), mask=mask)

    def greedy_decode(
        self, token: Tensor, state: Tensor, annotations: Tensor, steps: int, eos: int, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append the most probable token until ``eos``; return tokens (*batch, steps), scores (*batch).

        A score is the sum of log-probabilities. Source: operation ``greedy_decode``.
        """
        return greedy_decode(token, state, annotations, self.record(), steps, eos, mask=mask)

    def beam_decode(
        self, token: Tensor, state: Tensor, annotations: Tensor, steps: int, eos: int, beams: int, *,
        mask: Tensor | None = None, length_penalty: float = 0.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the best sentence of a beam search: tokens (*batch, steps), scores (*batch).

        Source: operation ``beam_decode``.
        """
        options: dict[str, Any] = {"mask": mask, "length_penalty": length_penalty}
        return beam_decode(token, state, annotations, self.record(), steps, eos, beams, **options)


class LuongAttention(nn.Module):
    """Luong's context, with one of his three scores.

    Args:
        state_dim: features of the state, d_s.
        annotation_dim: features of an annotation, d_h; ``state_dim`` unless given. "dot" needs ``state_dim``;
            "location" ignores it.
        score: "dot" s·h, without weights; "general" sᵀWh; "location" (W s)_t.
        num_positions: annotations m of every source, for "location" only.

    Shape: state (*batch, d_s), annotations (*batch, m, d_h); result (*batch, d_h). The mask is boolean, True = may
        attend, and broadcasts to (*batch, m). Weight w: (d_s, d_h) for "general", (m, d_s) for "location".
    Initialisation: for "general" as ``nn.Bilinear``'s weight, for "location" as ``nn.Linear``'s; both are uniform
        within 1/√d_s.
    Errors: ``ValueError`` for another score, for sizes below 1, for a second size with "dot", and for
        ``num_positions`` with any score but "location", or missing there.
    Source: operations ``luong_context_dot``, ``luong_context_general`` and ``luong_context_location``.

    >>> attention = LuongAttention(16, 32, score="general")
    >>> attention(torch.randn(3, 16), torch.randn(3, 7, 32)).shape
    torch.Size([3, 32])
    """

    def __init__(
        self, state_dim: int, annotation_dim: int | None = None, *,
        score: Literal["dot", "general", "location"] = "general", num_positions: int | None = None,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if score not in ("dot", "general", "location"):
            raise ValueError(f"LuongAttention: score: expected 'dot', 'general' or 'location'; got {score!r}")
        needs_positions, has_positions = score == "location", num_positions is not None
        if needs_positions != has_positions:
            expected = "a number of annotations for 'location'" if needs_positions else f"None for {score!r}"
            raise ValueError(f"LuongAttention: num_positions: expected {expected}; got {num_positions}")
        annotation_dim = state_dim if annotation_dim is None else annotation_dim
        if score == "dot" and annotation_dim != state_dim:
            raise ValueError(f"LuongAttention: annotation_dim: expected state_dim = {state_dim}; got {annotation_dim}")
        shape = (state_dim, annotation_dim) if num_positions is None else (num_positions, state_dim)
        check_sizes("LuongAttention", state_dim=state_dim, annotation_dim=annotation_dim, num_positions=shape[0])
        self.score = score
        self.w = None if score == "dot" else parameter(*shape, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; "dot" has none."""
        if self.w is not None:
            draw(linear_bound(self.w.shape[1 if self.score == "location" else 0]), self.w)

    def extra_repr(self) -> str:
        """Show the score and the sizes."""
        return f"score={self.score!r}" + ("" if self.w is None else f", w={tuple(self.w.shape)}")

    def forward(self, state: Tensor, annotations: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The context."""
        if self.w is None:
            return luong_context_dot(state, annotations, mask=mask)
        attend = luong_context_general if self.score == "general" else luong_context_location
        return attend(state, annotations, self.w, mask=mask)

    if TYPE_CHECKING:
        __call__ = forward
