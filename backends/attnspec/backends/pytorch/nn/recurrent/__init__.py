"""Recurrent networks: cells, which take one step, and sequences of steps. Weights are (in, out), as in the formulas.

PyTorch's weights are (out, in), gate below gate, with a bias for the input and one for the state. Only their sum enters
the formulas here: conversion from PyTorch adds them, and conversion to PyTorch gives the sum to the input and zeros to
the state.
"""

from attnspec.backends.pytorch.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from attnspec.backends.pytorch.nn.recurrent.sequences import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
