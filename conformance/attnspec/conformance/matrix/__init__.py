"""Matrix of a library: verdicts on every call, at every dtype, forward and backward."""
