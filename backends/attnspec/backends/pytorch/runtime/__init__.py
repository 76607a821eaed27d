"""Running operations in PyTorch: autocast, accumulation dtypes, broadcasting, causal masks, transforms, derivatives."""
