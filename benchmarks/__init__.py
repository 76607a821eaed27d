"""Benchmarks of the PyTorch backend: ``python -m benchmarks`` compares it with PyTorch's own ways, in one run."""
