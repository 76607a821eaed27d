"""Bases for adapters: conversion from and to NumPy, and gradients, for NumPy, PyTorch and JAX.

A module for each framework, imported by itself, so that none needs the others.
"""
