"""Mutants of transformers on tokens and of decoding with a cache.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it. S0 to S4 are sources of the specification.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.multihead import MultiHeadParameters
from attnspec.spec.transformer import (
    CachedDecoderStep,
    DecoderOnly,
    EncoderDecoder,
    EncoderDecoderParameters,
    EncoderOnly,
    KeyValueCache,
    LanguageModelParameters,
    LayerNormParameters,
)

# Models ---------------------------------------------------------------------------------------------------------------


@mutant(
    "embeddings not scaled by √d",
    replaces="scale_embeddings",
    operations=(EncoderDecoder,),
    breaks=("operation.oracle", "operation.gradient"),
    source="Vaswani 2017, 3.4, forgotten in many implementations",
)
def unscaled_embeddings(correct: Formulas, x: Numbers) -> Numbers:
    """Embeddings are not multiplied by √d."""
    return x


@mutant(
    "positions multiplied by √d too",
    replaces="embed_at_positions",
    operations=(EncoderDecoder,),
    breaks=("operation.oracle",),
    source="(x + p) * sqrt(d)",
)
def scaled_after(correct: Formulas, tokens: Numbers, table: Numbers) -> Numbers:
    """√d (x + P) is computed in place of √d x + P."""
    x = correct.embed(tokens, table)
    n, d = x.shape[-2:]
    return correct.scale_embeddings(x + correct.sinusoidal_positional_encoding(n, d).astype(x.dtype))


@mutant(
    "positions of the model from 1",
    replaces="positions",
    operations=(EncoderDecoder,),
    breaks=("operation.oracle",),
    source="positions counted from 1, where 0 is padding",
)
def model_from_one(correct: Formulas, n: int) -> Numbers:
    """Positions are 1 … n in place of 0 … n−1."""
    return np.arange(1, n + 1, dtype=np.float64)


@mutant(
    "padding of the source seen by the encoder",
    replaces="encode_source",
    operations=(EncoderDecoder,),
    breaks=("transformer.encoder-sees-no-target", "operation.oracle"),
    source="src_key_padding_mask given to the decoder only",
)
def encoder_unmasked(correct: Formulas, x: Numbers, p: EncoderDecoderParameters[Numbers], seen: Numbers) -> Numbers:
    """The source mask is ignored in the encoder, but not in attention to the memory."""
    return Formulas.encode_source(correct, x, p, None)


@mutant(
    "mean target embedding added to the encoder's input",
    replaces="encoder_decoder",
    operations=(EncoderDecoder,),
    breaks=("transformer.encoder-sees-no-target", "operation.oracle"),
    source="S2, solution 4: the activations of the encoder do not depend on the decoder",
)
def target_in_the_encoder(
    correct: Formulas,
    source: Numbers,
    target: Numbers,
    p: EncoderDecoderParameters[Numbers],
    *,
    source_mask: Numbers = None,
    mask: Numbers = None,
) -> Numbers:
    """The mean embedding of the target is added to the encoder's input."""
    seen = None if source_mask is None else source_mask[..., None, :]
    y = correct.embed_at_positions(target, p.target_embedding)
    x = correct.embed_at_positions(source, p.source_embedding)
    if target.shape[-1]:
        x = x + np.mean(y, axis=-2, keepdims=True)
    memory = correct.encode_source(x, p, seen)
    return correct.distribution(correct.decoder_stack(y, memory, p.decoder, mask=mask, memory_mask=seen), p.w, p.b)


@mutant(
    "scores of tokens in place of probabilities",
    replaces="distribution",
    operations=(EncoderDecoder, DecoderOnly, EncoderOnly),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="a loss that takes logits",
)
def scores_of_tokens(correct: Formulas, states: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Scores W s + b are returned in place of probabilities."""
    return correct.logits(states, w, b)


@mutant(
    "language model without a causal mask",
    replaces="join_causal_mask",
    operations=(DecoderOnly,),
    breaks=("masking.future-invariance", "transformer.decoder-without-memory"),
    source="a BERT trained as a GPT",
)
def unmasked_model(correct: Formulas, mask: Numbers, n: int) -> Numbers:
    """The causal mask is left out."""
    return mask


@mutant(
    "causal mask of a language model forgotten under a mask",
    replaces="join_causal_mask",
    operations=(DecoderOnly,),
    breaks=("transformer.decoder-without-memory", "operation.oracle"),
    source="attention_mask overrides is_causal",
)
def mask_overrides(correct: Formulas, mask: Numbers, n: int) -> Numbers:
    """With a mask, the causal mask is ignored."""
    return Formulas.join_causal_mask(correct, None, n) if mask is None else mask


@mutant(
    "encoder-only model with a causal mask",
    replaces="encoder_only",
    operations=(EncoderOnly,),
    breaks=("transformer.positions-matter", "attention.permutation-equivariance"),
    source="is_decoder=True in a configuration",
)
def causal_bert(
    correct: Formulas, tokens: Numbers, parameters: LanguageModelParameters[Numbers], *, mask: Numbers = None
) -> Numbers:
    """The encoder is causal: positions see only themselves and earlier ones."""
    return correct.language_model(tokens, parameters, correct.join_causal_mask(mask, tokens.shape[-1]))


@mutant(
    "position embeddings left out",
    replaces="language_model",
    operations=(DecoderOnly, EncoderOnly),
    breaks=("operation.oracle", "operation.gradient"),
    source="position_embeddings left out",
)
def without_positions(
    correct: Formulas, tokens: Numbers, p: LanguageModelParameters[Numbers], mask: Numbers
) -> Numbers:
    """No positions are added to the embeddings."""
    x = correct.embed(tokens, p.embedding)
    return correct.distribution(correct.encoder_stack(x, p.layers, mask=mask), p.w, p.b)


@mutant(
    "one position for all tokens",
    replaces="first_rows",
    operations=(EncoderOnly,),
    breaks=("transformer.positions-matter", "operation.oracle"),
    source="position_ids of shape (1, 1), broadcast",
)
def same_position(correct: Formulas, table: Numbers, n: int) -> Numbers:
    """Every token gets row 0 of the position table."""
    return table[np.zeros(n, int)]


@mutant(
    "rows of the position table from 1",
    replaces="first_rows",
    operations=(DecoderOnly, EncoderOnly),
    breaks=("operation.oracle", "operation.gradient"),
    source="RoBERTa and OPT, which keep rows for padding",
)
def second_row_first(correct: Formulas, table: Numbers, n: int) -> Numbers:
    """Position t gets row t + 1 of the position table, or its last row."""
    return table[np.minimum(np.arange(n) + 1, len(table) - 1)]


@mutant(
    "unknown tokens clipped",
    replaces="embed",
    operations=(EncoderDecoder, DecoderOnly, EncoderOnly),
    breaks=("operation.rejection",),
    source="jnp.take, which clips",
)
def clipped_tokens(correct: Formulas, tokens: Numbers, table: Numbers) -> Numbers:
    """Tokens outside of the vocabulary do not raise: they are clipped to the nearest one."""
    return correct.table_rows(table, np.clip(tokens, 0, len(table) - 1))


@mutant(
    "embeddings frozen",
    replaces="table_rows",
    operations=(EncoderDecoder, DecoderOnly),
    breaks=("operation.gradient",),
    source="Embedding.from_pretrained, which freezes",
)
def frozen_embeddings(correct: Formulas, table: Numbers, tokens: Numbers) -> Numbers:
    """The embedding table gets no gradient."""
    return Formulas.table_rows(correct, value_of(table), tokens)


@mutant(
    "embedding used in place of the output weights",
    replaces="language_model",
    operations=(DecoderOnly, EncoderOnly),
    breaks=("operation.oracle", "operation.gradient"),
    source="tie_word_embeddings=True for a model with weights of its own",
)
def tied_output(correct: Formulas, tokens: Numbers, p: LanguageModelParameters[Numbers], mask: Numbers) -> Numbers:
    """The embedding table is used in place of the output weights W."""
    tied_parameters = LanguageModelParameters(p.embedding, p.positions, p.layers, p.embedding, p.b)
    return Formulas.language_model(correct, tokens, tied_parameters, mask)


# The cache ------------------------------------------------------------------------------------------------------------


@mutant(
    "cached step does not attend to itself",
    replaces="attend_to_cache",
    operations=(CachedDecoderStep,),
    breaks=("transformer.cache-equals-full-decoder", "operation.oracle"),
    source="attention before the cache is appended to",
)
def stale_cache(
    correct: Formulas, row: Numbers, grown: KeyValueCache[Numbers], w: MultiHeadParameters[Numbers], allowed: Numbers
) -> Numbers:
    """A position does not attend to itself: the cache is read before it is extended."""
    stale = KeyValueCache(grown.key[..., :-1, :], grown.value[..., :-1, :])
    return Formulas.attend_to_cache(correct, row, stale, w, None if allowed is None else allowed[..., :-1])


@mutant(
    "new row put before the cache",
    replaces="append_row",
    operations=(CachedDecoderStep,),
    breaks=("operation.oracle", "masking.masked-keys-ignored"),
    source="torch.cat((new, cache))",
)
def new_row_in_front(correct: Formulas, cached: Numbers, row: Numbers, w: Numbers) -> Numbers:
    """The new keys and values are put before the cache, not after it."""
    both = Formulas.append_row(correct, cached, row, w)
    return np.concatenate([both[..., -1:, :], both[..., :-1, :]], axis=-2)


@mutant(
    "last cached row overwritten by the new one",
    replaces="append_row",
    operations=(CachedDecoderStep,),
    breaks=("transformer.cache-equals-full-decoder", "operation.oracle"),
    source="cache[:, :, pos - 1] = new, off by one",
)
def last_row_overwritten(correct: Formulas, cached: Numbers, row: Numbers, w: Numbers) -> Numbers:
    """The last cached keys and values are overwritten by the new ones, which appear twice."""
    both = Formulas.append_row(correct, cached, row, w)
    if both.shape[-2] < 2:
        return both
    return np.concatenate([both[..., :-2, :], both[..., -1:, :], both[..., -1:, :]], axis=-2)


@mutant(
    "mask of the cache shifted by one",
    replaces="extend_mask",
    operations=(CachedDecoderStep,),
    breaks=("masking.masked-keys-ignored", "operation.oracle"),
    source="the own position padded in front of the mask",
)
def shifted_mask(correct: Formulas, mask: Numbers, cached: int) -> Numbers:
    """The mask of the cache is shifted: each position has the mask of the one before."""
    both = Formulas.extend_mask(correct, mask, cached)
    return np.concatenate([both[..., -1:], both[..., :-1]], axis=-1)


@mutant(
    "keys and values cached before the normalization",
    replaces="cache_input",
    operations=(CachedDecoderStep,),
    breaks=("transformer.cache-equals-full-decoder", "operation.options-have-effect"),
    source="norm_first written for the queries only",
)
def not_normalized(correct: Formulas, row: Numbers, p: LayerNormParameters[Numbers], norm: str) -> Numbers:
    """With pre-norm, keys and values are cached from the row without normalization."""
    return row


@mutant(
    "no gradient of the cache",
    replaces="append_row",
    operations=(CachedDecoderStep,),
    breaks=("operation.gradient",),
    source="past_key_values detached",
)
def detached_cache(correct: Formulas, cached: Numbers, row: Numbers, w: Numbers) -> Numbers:
    """The cache gets no gradient."""
    return Formulas.append_row(correct, value_of(cached), row, w)
