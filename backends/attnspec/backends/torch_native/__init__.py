"""PyTorch's own attention, transformer layers and recurrent networks, unmodified, as a backend.

The adapter flattens batches, joins masks and weights, and checks shapes; it does not change numbers.

On the CPU, PyTorch accumulates gradients of layer normalization's gain and bias in the dtype of the weights: in half
dtypes their error exceeds every precision class. So layer normalization and the layers that contain it are declared for
float64 and float32 only; half dtypes run, but are not judged.
"""

from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import Attention
from attnspec.backends.torch_native.recurrent import CHECKS, Recurrent
from attnspec.backends.torch_native.transformer import Transformer
from attnspec.spec import Limits, Semantics

__all__ = ["TorchNative", "backend"]

_EAGER = {"bfloat16": "eager-bfloat16", "float16": "eager-float16"}


class TorchNative(Attention, Transformer, Recurrent):
    """PyTorch, unmodified: masked NaN and infinity propagate, and a GRU resets after the recurrent product.

    With few keys, the kernel that PyTorch chooses on the CPU hides NaN in queries.
    """

    name = "torch-native"
    limits = Limits(
        dtypes=("float64", "float32", "bfloat16", "float16"),
        devices=devices(),
        divided_heads=True,
        dtypes_by_operation=dict.fromkeys(("layer_norm", "encoder_layer", "decoder_layer"), ("float64", "float32")),
    )
    semantics = Semantics(masked_nonfinite="propagates", nan_queries="hidden", gru_reset="after")
    precision = {  # noqa: RUF012 - a declaration
        "*": {},
        **dict.fromkeys(CHECKS, _EAGER),
    }


backend = TorchNative()
