"""Import every module of the wheel that needs no GPU, and print those left out."""

import importlib
import pkgutil

import attnspec

OPTIONAL = {"triton", "jax", "onnx", "onnxruntime", "matplotlib"}

left_out = []
for module in pkgutil.walk_packages(attnspec.__path__, "attnspec."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        left_out.append(f"{module.name} (needs {error.name})")
print(f"imported attnspec from {attnspec.__path__!r}; left out: {', '.join(left_out) or 'nothing'}")
