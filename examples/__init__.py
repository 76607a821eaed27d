"""Models trained from scratch in minutes with the PyTorch backend: ``python -m examples --help``."""
