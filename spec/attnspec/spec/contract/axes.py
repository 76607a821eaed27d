"""Meanings of sizes and roles of arrays.

Laws select operations and change arguments by these meanings, never by an argument's name.
"""

from collections.abc import Mapping
from enum import Enum, Flag, auto


class Axis(Flag):
    """Meaning of a size: the items that it counts."""

    QUERY = auto()
    """Queries: each has a row of the result."""
    KEY = auto()
    """Keys: positions that are attended to or pooled."""
    TIME = auto()
    """Time steps."""
    FEATURE = auto()
    """Features of queries, keys and values."""
    WIDTH = auto()
    """Features of the inputs and outputs of a model."""
    HIDDEN = auto()
    """Units of a hidden layer or state."""
    HEAD = auto()
    """Attention heads; in grouped attention, the heads of the keys."""
    GROUP = auto()
    """Query heads per key head."""
    VOCABULARY = auto()
    """Tokens of a vocabulary."""
    BEAM = auto()
    """Hypotheses of a beam search."""
    LAYER = auto()
    """Layers of a stack."""
    SPARE = auto()
    """Rows of a table, or features, that a call does not use."""
    GRID = auto()
    """Positions along one dimension of an image, a volume or a feature map."""
    LENGTH = auto()
    """Length of a sequence that is only counted, not passed as an array. It is at least 1."""
    TAP = auto()
    """Taps of a filter, or buckets of distances: neighbouring positions, each with its own weight."""
    HISTORY = auto()
    """Inputs before the first one, which a state holds."""
    PAGE = auto()
    """Pages of a cache, or rows of a page."""
    SEQUENCE = auto()
    """Sequences packed into one array."""
    BLOCK = auto()
    """Blocks of neighbouring positions."""
    SELECTED = auto()
    """Keys that are selected for a query."""
    SELF = QUERY | KEY
    """Positions in self-attention: each is a query and a key."""
    POSITION = QUERY | KEY | TIME
    """Positions of any kind."""
    COUNTED = POSITION | LAYER | SPARE | HISTORY
    """Sizes that may be 0; every other size is at least 1."""


GLOSSARY: Mapping[str, Axis] = {
    "n": Axis.QUERY,
    "m": Axis.KEY,
    **dict.fromkeys(("t", "steps"), Axis.TIME),
    **dict.fromkeys(("d", "d_q", "d_k", "d_v", "p", "p_q", "p_k", "p_v"), Axis.FEATURE),
    **dict.fromkeys(("d_x", "d_y", "d_m", "d_s", "d_h", "d_g", "p_o", "channels"), Axis.WIDTH),
    **dict.fromkeys(("h", "f"), Axis.HIDDEN),
    **dict.fromkeys(("heads", "heads_k"), Axis.HEAD),
    "group": Axis.GROUP,
    "vocabulary": Axis.VOCABULARY,
    "beams": Axis.BEAM,
    "depth": Axis.LAYER,
    "spare": Axis.SPARE,
    **dict.fromkeys(("slices", "rows", "columns", "patch"), Axis.GRID),
    **dict.fromkeys(("slices_from", "rows_from", "columns_from"), Axis.GRID),
    "taps": Axis.TAP,
    "past": Axis.HISTORY,
    **dict.fromkeys(("pages", "blocks", "page"), Axis.PAGE),
    "sequences": Axis.SEQUENCE,
    "entries": Axis.SELECTED,
}
"""Meaning of each size name; an operation may override it with ``axes=``."""


class Role(Flag):
    """Role of an argument in its operation; it follows from the argument's kind and axes."""

    MASK = auto()
    """Booleans: True where a position may be attended to."""
    LENGTHS = auto()
    """Integers: numbers of positions before the padding."""
    INDICES = auto()
    """Integers: tokens, or row numbers of another array."""
    WEIGHT = auto()
    """Parameters, shared by all elements of a batch."""
    STATE = auto()
    """A vector for every element of a batch."""
    ROWS = auto()
    """A vector for every position."""


class ScoreEffect(Enum):
    """Effect of an option or optional array on attention scores; its kind and axes do not show it."""

    SCALE = auto()
    """A factor of all scores."""
    CAP = auto()
    """A bound that scores approach and do not exceed (soft cap)."""
    BIAS = auto()
    """Numbers added to the scores."""
    SLOPES = auto()
    """Penalty per head for each position of distance between query and key (ALiBi)."""
    SINK = auto()
    """Score per head of an extra key whose value is 0 (attention sink)."""
