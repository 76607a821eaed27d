"""Operators of ONNX, by its reference evaluator and by ONNX Runtime.

Both run unmodified on the CPU. The adapter flattens batches, joins the weights of gates, and evaluates a model of one
operator. A mask beside a bias becomes −∞ in the bias; a negative scale, which ONNX lacks, negates the query. Empty
results and sequences without steps are not evaluated. Not available: gradients, slopes, sinks, logarithms of sums, and
in float64 RMS norms, whose ε is float32, and rotary embeddings. Windows need opset 25. ONNX Runtime has a kernel of
Attention up to opset 24, and decomposes later ones. It has no float64 networks and no bfloat16; in float16 it scales
queries and keys before their product. The reference evaluator's float16 products are NumPy's, for which there is no
precision class. docs/adapters.md lists the violations.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from onnx.reference import ReferenceEvaluator

from attnspec.backends.onnx_native.attention import Attention, LinearAttention
from attnspec.backends.onnx_native.layers import Layers
from attnspec.backends.onnx_native.running import session
from attnspec.spec import Limits, Semantics

__all__ = ["Evaluator", "Onnx", "reference", "runtime"]


class Onnx(Attention, Layers):
    """One of the two evaluators: masked NaN and infinity propagate; calls without keys are errors.

    With lengths, causal masks are aligned at the last key within each length.
    """

    semantics = Semantics(masked_nonfinite="propagates", no_keys="error", length_alignment="at-length")

    def __init__(self, name: str, load: Callable[[bytes], Any], limits: Limits, **precision: str) -> None:
        super().__init__()
        self.name, self.load, self.limits = name, load, limits
        self.precision = dict.fromkeys(("scaled_dot_product_attention", "grouped_query_attention"), precision)


class Evaluator(Onnx, LinearAttention):
    """The reference evaluator, which has linear attention too; ONNX Runtime does not run its decomposition."""


_ROTARY = ("rotary_embedding", "axial_rotary_embedding")
_SINGLE: dict[str, tuple[str, ...]] = dict.fromkeys(("rms_norm", "linear_attention", *_ROTARY), ("float32",))
_NARROW: dict[str, tuple[str, ...]] = dict.fromkeys(("gru", "lstm", *_ROTARY), ("float32", "float16"))
_OPTIONS = "scale window softcap bias key_lengths lengths epsilon positions theta decay beta"
_LIMITS = Limits(features=tuple(_OPTIONS.split()), dtypes_by_operation=_SINGLE)
_HALF = replace(_LIMITS, dtypes=("float64", "float32", "float16"), dtypes_by_operation=_SINGLE | _NARROW)
reference = Evaluator("onnx-reference", cache(ReferenceEvaluator), _LIMITS)
runtime = Onnx("onnx-runtime", session, _HALF, float16="prescaled-float16")
