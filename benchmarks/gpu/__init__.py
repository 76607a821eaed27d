"""Checks of the backend for the first hour on a GPU: ``python -m benchmarks.gpu``."""
