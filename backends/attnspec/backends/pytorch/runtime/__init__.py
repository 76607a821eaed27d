"""How operations run in PyTorch: autocast, accumulation, broadcasting, functional transforms, derivatives."""
