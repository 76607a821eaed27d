"""From a formula to the reference of an operation: checked arguments, and arithmetics other than NumPy's."""
