"""Models from tokens to token probabilities, all post-norm."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from attnspec.backends.pytorch.nn.initialization import Device, draw, linear_bound, parameter
from attnspec.backends.pytorch.nn.records import Recorded, check_sizes
from attnspec.backends.pytorch.nn.transformer.layers import TransformerDecoderLayer, TransformerEncoderLayer
from attnspec.backends.pytorch.transformer import decoder_only, encoder_decoder, encoder_only
from attnspec.spec import EncoderDecoderParameters, LanguageModelParameters


class Transformer(Recorded[EncoderDecoderParameters[Tensor]]):
    """The encoder-decoder transformer: for every target token, probabilities of the next token.

    Unlike ``nn.Transformer`` it takes tokens and returns probabilities, and its decoder is causal without a mask.

    Args:
        num_source_embeddings: tokens of the source's vocabulary.
        num_embeddings: tokens of the target's vocabulary.
        d_model: features, d.
        nhead: heads of each attention, which divide ``d_model``.
        num_encoder_layers: layers of the encoder.
        num_decoder_layers: layers of the decoder.
        dim_feedforward: hidden units of every feed-forward network, f.

    Shape: source (*batch, m) and target (*batch, n), of integer dtypes; result (*batch, n, vocabulary). Masks are
        boolean, True = may attend: ``source_mask`` broadcasts to (*batch, m), ``mask`` to (*batch, n, n). Weights are
        source_embedding and target_embedding (vocabulary, d), those of ``encoder`` and ``decoder``, w (vocabulary, d)
        and b (vocabulary).
    Initialisation: embeddings, which the formula multiplies by √d, are normal with standard deviation 1/√d; w and b are
        as in ``nn.Linear``, uniform within 1/√d; layers begin as :class:`TransformerEncoderLayer` and
        :class:`TransformerDecoderLayer` do, drawn separately for each.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``d_model``.
    Source: operation ``encoder_decoder``.

    >>> model = Transformer(20, 9, 16, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=64)
    >>> model(torch.randint(20, (2, 7)), torch.randint(9, (2, 5))).shape
    torch.Size([2, 5, 9])
    """

    kind = EncoderDecoderParameters
    parts: ClassVar[Mapping[str, Any]] = {"encoder": TransformerEncoderLayer, "decoder": TransformerDecoderLayer}

    def __init__(
        self, num_source_embeddings: int, num_embeddings: int, d_model: int = 512, nhead: int = 8,
        num_encoder_layers: int = 6, num_decoder_layers: int = 6, dim_feedforward: int = 2048, *,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"num_source_embeddings": num_source_embeddings, "num_embeddings": num_embeddings, "d_model": d_model}
        counts = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
        check_sizes("Transformer", **sizes, **counts)
        self.source_embedding = parameter(num_source_embeddings, d_model, device=device, dtype=dtype)
        self.target_embedding = parameter(num_embeddings, d_model, device=device, dtype=dtype)
        self.encoder = nn.ModuleList(
            TransformerEncoderLayer(d_model, nhead, dim_feedforward, device=device, dtype=dtype)
            for _ in range(num_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            TransformerDecoderLayer(d_model, nhead, dim_feedforward, device=device, dtype=dtype)
            for _ in range(num_decoder_layers)
        )
        self.w = parameter(num_embeddings, d_model, device=device, dtype=dtype)
        self.b = parameter(num_embeddings, device=device, dtype=dtype)
        self._draw()

    def _draw(self) -> None:
        d = self.w.shape[1]
        for table in (self.source_embedding, self.target_embedding):
            nn.init.normal_(table, std=d**-0.5)
        draw(linear_bound(d), self.w, self.b)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        super().reset_parameters()
        self._draw()

    def extra_repr(self) -> str:
        """Show the sizes."""
        (tokens, d), others = self.target_embedding.shape, self.source_embedding.shape[0]
        return f"num_source_embeddings={others}, num_embeddings={tokens}, d_model={d}"

    def forward(
        self, source: Tensor, target: Tensor, *, source_mask: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return probabilities of the token after each target token."""
        return encoder_decoder(source, target, self.record(), source_mask=source_mask, mask=mask)

    if TYPE_CHECKING:
        __call__ = forward


class LanguageModel(Recorded[LanguageModelParameters[Tensor]]):
    """Base of `DecoderOnly` and `EncoderOnly`, with their weights."""

    kind = LanguageModelParameters
    parts: ClassVar[Mapping[str, Any]] = {"layers": TransformerEncoderLayer}

    def __init__(
        self, num_embeddings: int, max_len: int, d_model: int = 512, nhead: int = 8, num_layers: int = 6,
        dim_feedforward: int = 2048, *, device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"num_embeddings": num_embeddings, "max_len": max_len, "d_model": d_model, "num_layers": num_layers}
        check_sizes(type(self).__name__, **sizes)
        self.embedding = parameter(num_embeddings, d_model, device=device, dtype=dtype)
        self.positions = parameter(max_len, d_model, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(d_model, nhead, dim_feedforward, device=device, dtype=dtype)
            for _ in range(num_layers)
        )
        self.w = parameter(num_embeddings, d_model, device=device, dtype=dtype)
        self.b = parameter(num_embeddings, device=device, dtype=dtype)
        self._draw()

    def _draw(self) -> None:
        for table in (self.embedding, self.positions):
            nn.init.normal_(table)
        draw(linear_bound(self.w.shape[1]), self.w, self.b)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        super().reset_parameters()
        self._draw()

    def extra_repr(self) -> str:
        """Show the sizes."""
        (tokens, d), rows = self.embedding.shape, self.positions.shape[0]
        return f"num_embeddings={tokens}, max_len={rows}, d_model={d}"


class DecoderOnly(LanguageModel):
    """GPT: for every token of a text, probabilities of the next token.

    Args:
        num_embeddings: tokens of the vocabulary.
        max_len: number of learned positions.
        d_model: features, d.
        nhead: heads, which divide ``d_model``.
        num_layers: number of layers.
        dim_feedforward: hidden units of every feed-forward network, f.

    Shape: tokens (*batch, n), of an integer dtype, with n ≤ ``max_len``; result (*batch, n, vocabulary). The mask is
        boolean, True = may attend, and broadcasts to (*batch, n, n); attention is causal without it. Weights are
        embedding (vocabulary, d), positions (max_len, d), those of ``layers``, w (vocabulary, d) and b (vocabulary).
    Initialisation: embedding and positions as ``nn.Embedding``'s weight, standard normal; w and b as in ``nn.Linear``,
        uniform within 1/√d; layers as :class:`TransformerEncoderLayer`, drawn separately for each.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``d_model``.
    Source: operation ``decoder_only``.

    >>> model = DecoderOnly(9, 100, 16, 4, num_layers=2, dim_feedforward=64)
    >>> model(torch.randint(9, (2, 5))).shape
    torch.Size([2, 5, 9])
    """

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return probabilities of the token after each token."""
        return decoder_only(tokens, self.record(), mask=mask)

    if TYPE_CHECKING:
        __call__ = forward


class EncoderOnly(LanguageModel):
    """BERT: for every position of a text, probabilities of the token there.

    Args:
        num_embeddings: tokens of the vocabulary, one of which is the mask token.
        max_len: number of learned positions.
        d_model: features, d.
        nhead: heads, which divide ``d_model``.
        num_layers: layers.
        dim_feedforward: hidden units of every feed-forward network, f.

    Shape: tokens, mask, result and weights are as in :class:`DecoderOnly`; attention is not causal.
    Initialisation: that of :class:`DecoderOnly`.
    Errors: ``ValueError`` for sizes below 1 and if heads do not divide ``d_model``.
    Source: operation ``encoder_only``.

    >>> model = EncoderOnly(9, 100, 16, 4, num_layers=2, dim_feedforward=64)
    >>> model(torch.randint(9, (2, 5))).shape
    torch.Size([2, 5, 9])
    """

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Return probabilities of the token at each position."""
        return encoder_only(tokens, self.record(), mask=mask)

    if TYPE_CHECKING:
        __call__ = forward
