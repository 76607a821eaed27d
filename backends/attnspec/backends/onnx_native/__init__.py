"""Operators of ONNX as backends: by the reference evaluator of the package onnx, and by ONNX Runtime.

A module for each evaluator, imported by itself. There are no gradients.
"""
