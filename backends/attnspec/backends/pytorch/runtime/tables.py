"""Look-up of rows in tables of embeddings."""

import torch
from torch import Tensor


def embedding_rows(tokens: Tensor, table: Tensor) -> Tensor:
    """Return the rows (*batch, d) of a table (vocabulary, d) for tokens (*batch)."""
    return torch.embedding(table, tokens if tokens.dtype in (torch.int32, torch.int64) else tokens.long())
