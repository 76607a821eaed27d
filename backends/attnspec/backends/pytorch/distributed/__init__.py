"""Context-parallel attention over ``torch.distributed``: every rank holds a part of the queries, keys and values."""

from attnspec.backends.pytorch.distributed.attention import additive_attention as additive_attention
from attnspec.backends.pytorch.distributed.attention import grouped_query_attention as grouped_query_attention
from attnspec.backends.pytorch.distributed.attention import scaled_dot_product_attention as scaled_dot_product_attention
from attnspec.backends.pytorch.distributed.attention import variable_length_attention as variable_length_attention
from attnspec.backends.pytorch.distributed.costs import Cost as Cost
from attnspec.backends.pytorch.distributed.costs import communication as communication
from attnspec.backends.pytorch.distributed.costs import forward_seconds as forward_seconds
from attnspec.backends.pytorch.distributed.methods import METHODS as METHODS
from attnspec.backends.pytorch.distributed.shards import Shard as Shard
from attnspec.backends.pytorch.distributed.shards import Shards as Shards
from attnspec.backends.pytorch.distributed.shards import contiguous as contiguous
from attnspec.backends.pytorch.distributed.shards import zigzag as zigzag
