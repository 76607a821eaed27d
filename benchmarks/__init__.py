"""Benchmarks of the PyTorch backend against PyTorch's own ways: ``python -m benchmarks``."""
