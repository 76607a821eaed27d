"""Tables of embeddings."""

import torch
from torch import Tensor


def rows(tokens: Tensor, table: Tensor) -> Tensor:
    """Rows (*batch, d) of a table (vocabulary, d) for tokens (*batch)."""
    return torch.embedding(table, tokens if tokens.dtype in (torch.int32, torch.int64) else tokens.long())
