"""The matrix of a library: every way to call it, at every dtype, forward and backward, judged."""
