"""Base classes of NumPy, PyTorch and JAX backends: conversion from and to NumPy, and gradients.

Each framework has its own module, so that a backend imports only the framework that it uses.
"""
