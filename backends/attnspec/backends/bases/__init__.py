"""Base classes of backends for NumPy, PyTorch and JAX: conversion from and to NumPy, and gradients.

Each framework has a module of its own, so that none needs the others.
"""
