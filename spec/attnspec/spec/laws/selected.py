"""Laws of selected attention."""

from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.sources import DAO, DEEPSEEK_SPARSE, YUAN
from attnspec.spec.selected import BlockMask, IndexerScores, SelectedAttention, TopKeys

_SPARSE = DEEPSEEK_SPARSE.passage("2.1 DeepSeek Sparse Attention")

INDEXER_HEADS_ADD = law(
    "selected.indexer-heads-add",
    "The scores are the sum of those of single heads, each with its own weights.",
    formula=r"I(q, k, w) = \sum_r I(q_r, k, w_r)",
    governs=of(IndexerScores),
    sources=[_SPARSE],
)
INDEXER_RECTIFIES_PRODUCTS = law(
    "selected.indexer-rectifies-products",
    "Products of queries and keys are rectified before they are weighted: the scores of queries and of opposite "
    "queries add up to the weighted sum of the magnitudes of products.",
    formula=r"I(q, k, w) + I(-q, k, w) = \sum_r w_r |q_r^\top k|",
    governs=of(IndexerScores),
    sources=[_SPARSE],
)
TOP_KEYS_ARE_GREATEST = law(
    "selected.top-keys-are-greatest",
    "No key that is left out has a greater score than one that is selected, and k keys are selected, or all with "
    "scores above −∞ if these are fewer; also where scores are equal.",
    formula=r"|T| = \min(k, |\{j : s_j > -\infty\}|),\quad \min_{j \in T} s_j \ge \max_{j \notin T} s_j",
    governs=of(TopKeys),
    sources=[_SPARSE, YUAN.passage("3.3.2 Token selection")],
)
SELECTION_IS_MASK = law(
    "selected.selection-is-mask",
    "Attention to selected keys is attention under the mask of these keys, with `causal` too.",
    formula=r"f(Q, K, V; T) = f(Q, K, V; M),\quad M_{ij} = [\,j \in T_i\,]",
    governs=of(SelectedAttention),
    sources=[_SPARSE],
)
ORDER_OF_SELECTION = law(
    "selected.order-of-selection",
    "The order of the indices in a row does not matter, nor does −1 before, between or after them.",
    formula=r"f(Q, K, V; T_\pi) = f(Q, K, V; T),\quad f(Q, K, V; [-1, T, -1]) = f(Q, K, V; T)",
    governs=of(SelectedAttention),
    sources=[_SPARSE],
)
UNSELECTED_KEYS = law(
    "selected.unselected-keys",
    "Keys and values that no query selects have no effect, NaN and ∞ included. A query that selects none gives 0.",
    formula=r"j \notin \bigcup_i T_i \Rightarrow \partial f / \partial (k_j, v_j) = 0,\quad T_i = \emptyset "
    r"\Rightarrow o_i = 0",
    governs=of(SelectedAttention),
    sources=[_SPARSE],
)
POSITIONS_OF_A_BLOCK = law(
    "selected.positions-of-a-block",
    "All pairs of positions of a block have its value. A partial block at the end has it too, and no pair of "
    "positions beyond the blocks is attendable.",
    formula=r"M_{ij} = B_{\lfloor i / p \rfloor \lfloor j / q \rfloor}",
    governs=of(BlockMask),
    sources=[DAO.passage("3.3 Extension: block-sparse FlashAttention")],
)
