"""Types for backends: every operation of the contract under its name.

:class:`Operations` is the base of classes, :class:`Table` the type of dictionaries. Both only declare; what a backend
provides is what it defines. A function is checked alone by ``attnspec.spec.implements``.
"""

from typing import TYPE_CHECKING, Generic, TypedDict

from attnspec.spec import (
    AdditiveAttention,
    AdditiveScores,
    Array,
    AttentionPooling,
    AveragePooling,
    BahdanauContext,
    CausalMask,
    CrossAttention,
    DotProductAttention,
    DotScores,
    GaussianScores,
    GeneralAttention,
    GeneralScores,
    LocationScores,
    MeanNormalization,
    MultiHeadAttention,
    NadarayaWatson,
    PaddingMask,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    ScaledDotScores,
    SelfAttention,
    SinusoidalPositionalEncoding,
    Softmax,
)


class Operations(Generic[Array]):
    """Base of a backend class: a method with the name of an operation is checked against its Protocol."""

    if TYPE_CHECKING:
        dot_scores: DotScores[Array]
        scaled_dot_scores: ScaledDotScores[Array]
        additive_scores: AdditiveScores[Array]
        general_scores: GeneralScores[Array]
        location_scores: LocationScores[Array]
        gaussian_scores: GaussianScores[Array]
        softmax: Softmax[Array]
        mean_normalization: MeanNormalization[Array]
        causal_mask: CausalMask[Array]
        padding_mask: PaddingMask[Array]
        attention_pooling: AttentionPooling[Array]
        average_pooling: AveragePooling[Array]
        nadaraya_watson: NadarayaWatson[Array]
        dot_product_attention: DotProductAttention[Array]
        scaled_dot_product_attention: ScaledDotProductAttention[Array]
        general_attention: GeneralAttention[Array]
        additive_attention: AdditiveAttention[Array]
        self_attention: SelfAttention[Array]
        projected_self_attention: ProjectedSelfAttention[Array]
        cross_attention: CrossAttention[Array]
        multi_head_attention: MultiHeadAttention[Array]
        sinusoidal_positional_encoding: SinusoidalPositionalEncoding[Array]
        bahdanau_context: BahdanauContext[Array]


class Table(TypedDict, Generic[Array], total=False):
    """A backend's operations as a dictionary: ``operations: Table[Tensor] = {"dot_scores": scores}``."""

    dot_scores: DotScores[Array]
    scaled_dot_scores: ScaledDotScores[Array]
    additive_scores: AdditiveScores[Array]
    general_scores: GeneralScores[Array]
    location_scores: LocationScores[Array]
    gaussian_scores: GaussianScores[Array]
    softmax: Softmax[Array]
    mean_normalization: MeanNormalization[Array]
    causal_mask: CausalMask[Array]
    padding_mask: PaddingMask[Array]
    attention_pooling: AttentionPooling[Array]
    average_pooling: AveragePooling[Array]
    nadaraya_watson: NadarayaWatson[Array]
    dot_product_attention: DotProductAttention[Array]
    scaled_dot_product_attention: ScaledDotProductAttention[Array]
    general_attention: GeneralAttention[Array]
    additive_attention: AdditiveAttention[Array]
    self_attention: SelfAttention[Array]
    projected_self_attention: ProjectedSelfAttention[Array]
    cross_attention: CrossAttention[Array]
    multi_head_attention: MultiHeadAttention[Array]
    sinusoidal_positional_encoding: SinusoidalPositionalEncoding[Array]
    bahdanau_context: BahdanauContext[Array]
