"""Names of the backends that are the rows of PyTorch's matrix, in order."""

from attnspec.backends.bases.torch import devices as devices

PACKAGE = "torch"
"""Package whose version the matrix states."""

_HERE = "attnspec.backends.torch_native"

ROWS = (
    f"{_HERE}.kernels:math",
    f"{_HERE}.kernels:flash",
    f"{_HERE}.kernels:efficient",
    f"{_HERE}.kernels:cudnn",
    f"{_HERE}.kernels:overrideable",
    f"{_HERE}.flex:eager",
    f"{_HERE}.flex:compiled_row",
    f"{_HERE}.grouped:grouped_row",
    f"{_HERE}.packed:packed_row",
    f"{_HERE}.heads:slow_path",
    f"{_HERE}.heads:slow_path_with_weights",
    f"{_HERE}.heads:fast_path",
    f"{_HERE}.heads:fast_path_with_weights",
    f"{_HERE}.layers:slow_encoder",
    f"{_HERE}.layers:fast_encoder",
    f"{_HERE}.layers:decoder",
    f"{_HERE}.networks:rnn",
    f"{_HERE}.networks:gru",
    f"{_HERE}.networks:lstm",
)
