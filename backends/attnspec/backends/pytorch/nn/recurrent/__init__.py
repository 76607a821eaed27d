"""Modules of recurrent networks: cells for one step, and networks over sequences.

Weights are (in, out), as in the formulas. PyTorch's are (out, in), with all gates stacked, and it has a bias for the
input and one for the state. Only their sum enters the formulas: conversion from PyTorch adds them, conversion to
PyTorch gives the sum to the input's bias and zeros to the state's.
"""

from attnspec.backends.pytorch.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from attnspec.backends.pytorch.nn.recurrent.sequences import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
