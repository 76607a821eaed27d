"""Selected attention: keys that an indexer chooses, attention to them, and masks of blocks.

Edges: An empty batch gives an empty result. So does `n` = 0.
"""

from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Bool, Float, Int

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.axes import Axis, ScoreEffect
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.semantics import depends_on
from attnspec.spec.contract.sources import DAO, DEEPSEEK_SPARSE, YUAN

__all__ = [
    "BlockMask",
    "IndexerScores",
    "SelectedAttention",
    "SelectedOperations",
    "SelectedTable",
    "TopKeys",
]


@operation(
    "indexer_scores",
    chapter="selected",
    formula=r"I_{ij} = \sum_r w_{ir} \max(0, q_{ri}^\top k_j)",
    sources=[DEEPSEEK_SPARSE.passage("2.1 DeepSeek Sparse Attention")],
    linear="weights",
)
class IndexerScores(Protocol[Array]):
    """Scores of the lightning indexer, by which DeepSeek sparse attention (DSA) selects keys.

    Where: Heads r share the keys. w are `weights`, one number per query and head, of either sign. Nothing is divided by
    √d or by a number of heads: such factors belong to the weights. Scores are in units of weights × query × key.
    Domain: No product and no sum overflows.
    Edges: With m = 0 the result is empty.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch heads n d"],
        key: Float[Array, "*#batch m d"],
        weights: Float[Array, "*#batch n heads"],
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "top_keys",
    chapter="selected",
    formula=r"M_{ij} = [\,j \in T_i\,],\quad |T_i| = \min(k, |\{j : s_{ij} > -\infty\}|),\quad"
    r" j \in T_i,\ l \notin T_i \Rightarrow s_{ij} \ge s_{il}",
    sources=[
        DEEPSEEK_SPARSE.passage("2.1 DeepSeek Sparse Attention"),
        YUAN.passage("3.3.2 Token selection"),
    ],
    trial_values={"count": (2, 1, 3, 16, 64)},
)
class TopKeys(Protocol[Array]):
    """Mask of the k keys with the greatest scores, a set per query.

    Where: k is `count`. In the result, True = may attend.
    Domain: k ≥ 1. No score is NaN.
    Edges: If k or fewer scores are above −∞, all of these keys are selected. A score of −∞, which hides a key, is never
    selected. If several keys have the k-th greatest score, any of them may be selected, so that k are. With m = 0 the
    mask is empty.
    """

    def __call__(self, scores: Float[Array, "*batch n m"], count: int) -> Bool[Array, "*batch n m"]: ...


@depends_on("head_groups")
@operation(
    "selected_attention",
    chapter="selected",
    formula=r"o_{ri} = \sum_{j \in T_{hi}} \alpha_{rij} v_{hj},\quad"
    r" \alpha_{rij} = \operatorname{softmax}_{j \in T_{hi}}(\lambda q_{ri}^\top k_{hj}),\quad"
    r" h = \lfloor r / g \rfloor",
    sources=[
        DEEPSEEK_SPARSE.passage("2.1 DeepSeek Sparse Attention"),
        YUAN.passage("3.3.2 Token selection"),
    ],
    linear="value",
    features="causal scale",
    selections={"indices": "m"},
    trial_values={"scale": (0.25, -0.5)},
    parts={"scale": ScoreEffect.SCALE},
)
class SelectedAttention(Protocol[Array]):
    """Attention of every query to the keys that its indices name.

    Where: T are the keys in a row of `indices`, in any order; −1 names no key, at any place of the row. g is `group`,
    and the first g query heads share a key head and its indices, or heads take turns (semantics `head_groups`). Indices
    may be shared by all heads, as in DeepSeek sparse attention. λ is `scale`; if it is not given, products are divided
    by √d. The output is in units of value.
    Domain: Σ|q||k| does not overflow. No key is named twice in a row.
    Edges: With `causal`, keys after the query are left out, though they are named. If n ≠ `m`, query 0 is aligned with
    key 0 (semantics `causal_alignment`). Keys that are not named have no effect, NaN and ∞ included. A query without
    keys gives 0.
    """

    def __call__(
        self,
        query: Annotated[Float[Array, "*#batch heads n d"], sizes(heads="heads_k*group")],
        key: Float[Array, "*#batch heads_k m d"],
        value: Float[Array, "*#batch heads_k m d_v"],
        indices: Int[Array, "*#batch #heads_k n entries"],
        *,
        causal: bool = False,
        scale: float | None = None,
    ) -> Annotated[Float[Array, "*batch heads n d_v"], sizes(heads="heads_k*group")]: ...


@operation(
    "block_mask",
    chapter="selected",
    formula=r"M_{ij} = B_{\lfloor i / p \rfloor \lfloor j / q \rfloor}",
    sources=[
        DAO.passage("3.3 Extension: block-sparse FlashAttention"),
        YUAN.passage("3.3.2 Token selection"),
    ],
    axes={"query_blocks": Axis.BLOCK, "key_blocks": Axis.BLOCK},
    trial_values={"query_block_size": (2, 1, 3, 16, 64, 128), "key_block_size": (2, 1, 3, 16, 64, 128)},
)
class BlockMask(Protocol[Array]):
    """Mask of single positions from a mask of blocks.

    Where: B are `blocks`, p is `query_block_size` and q `key_block_size`, in positions. In the result, True = may
    attend.
    Domain: p ≥ 1, q ≥ 1.
    Edges: The last block may be partial, and blocks may lie beyond the last position. Positions beyond the last block
    are not attendable. With m = 0 the mask is empty.
    """

    def __call__(
        self,
        blocks: Bool[Array, "*batch query_blocks key_blocks"],
        n: int,
        m: int,
        query_block_size: int,
        key_block_size: int,
    ) -> Bool[Array, "*batch {n} {m}"]: ...


class SelectedOperations(Generic[Array]):
    """The operations of selected attention as methods of a backend class."""

    indexer_scores: IndexerScores[Array]
    top_keys: TopKeys[Array]
    selected_attention: SelectedAttention[Array]
    block_mask: BlockMask[Array]


class SelectedTable(TypedDict, Generic[Array], total=False):
    """The operations of selected attention by name, as a typed dictionary."""

    indexer_scores: IndexerScores[Array]
    top_keys: TopKeys[Array]
    selected_attention: SelectedAttention[Array]
    block_mask: BlockMask[Array]
