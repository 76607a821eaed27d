"""Judge NumPy arrays with only the packages that attnspec installs without extras."""

import numpy as np

from attnspec.backends.bases.numpy import NDArray
from attnspec.conformance import judge, suggest_inputs, tolerance

NAME = "scaled_dot_product_attention"

rng = np.random.default_rng(0)
query, key, value = (rng.standard_normal((2, 8, 4)) for _ in range(3))


def attention(scale: float) -> NDArray:
    """softmax(QKᵀ·scale)V."""
    weights = np.exp(query @ np.swapaxes(key, -1, -2) * scale)
    result: NDArray = weights / weights.sum(-1, keepdims=True) @ value
    return result


right = judge(NAME, attention(0.5), query, key, value)
assert right, right
wrong = judge(NAME, attention(0.25), query, key, value)
assert not wrong, wrong
assert "attention scaled by d" in str(wrong), wrong
cotangent = np.ones_like(value)
unfinished = judge(
    NAME, attention(0.5), query, key, value, cotangent=cotangent, gradients={"value": np.zeros_like(value)}
)
assert not unfinished, unfinished
print(wrong)
print(tolerance(NAME, query, key, value))
print(sorted(suggest_inputs(NAME, query, key, value)))
