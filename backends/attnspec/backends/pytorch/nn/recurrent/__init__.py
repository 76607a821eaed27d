"""Modules of recurrent networks: cells for one step, and networks over sequences.

Weights are (in, out), as in the formulas. PyTorch's are (out, in), with all gates stacked. It has two biases, of the
input and of the state, and only their sum enters the formulas. So conversion from PyTorch adds them; conversion to
PyTorch puts the sum into the input's bias and zeros into the state's.
"""

from attnspec.backends.pytorch.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from attnspec.backends.pytorch.nn.recurrent.sequences import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
