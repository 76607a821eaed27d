"""How fast the PyTorch backend is: ``python -m benchmarks`` measures it against PyTorch's own ways, in one run."""
