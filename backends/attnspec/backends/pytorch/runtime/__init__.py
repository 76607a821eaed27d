"""How operations run in PyTorch: autocast, accumulation dtypes, broadcasting, causal masks, transforms, derivatives."""
