"""PyTorch's own attention, transformer layers and recurrent networks, unmodified, as a backend.

The adapter presents: it flattens batches, joins masks and weights, and checks shapes. Nothing is done to the numbers.

On the CPU, the gradients of the gain and the bias of a layer normalization are accumulated in the dtype of the weights:
in half dtypes their error exceeds what a class of precision allows. So normalization and the layers that contain it are
declared for float64 and float32 alone; half dtypes run, and are not judged.
"""

from attnspec.backends.bases.torch import devices
from attnspec.backends.torch_native.attention import Attention
from attnspec.backends.torch_native.recurrent import CHECKS, Recurrent
from attnspec.backends.torch_native.transformer import Transformer
from attnspec.spec import Limits, Semantics

__all__ = ["TorchNative", "backend"]

_EAGER = {"bfloat16": "eager-bfloat16", "float16": "eager-float16"}


class TorchNative(Attention, Transformer, Recurrent):
    """PyTorch as it is: what a mask hides propagates if it is not finite, and a GRU is reset after the product.

    The kernel that it takes on the CPU hides NaN in queries of few keys.
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
