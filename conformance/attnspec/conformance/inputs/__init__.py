"""The inputs that laws are checked on: examples, corners, strategies."""
