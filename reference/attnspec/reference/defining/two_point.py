"""A two-point design: a small sample of ±1 variables, any four of them independent.

The variance of a dot product involves no more than four coordinates at a time. On this sample the formula of
:mod:`attnspec.reference.moments` therefore holds exactly, without random numbers.

The sample is the dual of a binary code that corrects two errors (BCH): sample (a, b) ∈ GF(2^r)² gives variable
x ∈ GF(2^r)∖{0} the sign (−1)^(⟨a,x⟩ + ⟨b,x³⟩). The code has distance 5, so any four columns (x, x³) are linearly
independent over GF(2), and any four signs take all 16 values equally often.
"""

import numpy as np

_PRIMITIVE = {1: 0b11, 2: 0b111, 3: 0b1011, 4: 0b10011, 5: 0b100101, 6: 0b1000011, 7: 0b10000011, 8: 0b100011101}
"""Primitive polynomials over GF(2), by degree r."""

MOST_VARIABLES = 2 ** max(_PRIMITIVE) - 1


def two_point_design(variables: int) -> np.ndarray:
    """Signs ±1, any four variables independent, each with mean exactly 0 and variance exactly 1.

    Where: variables in 1..255; result (4^r, variables) int8 with the least r such that variables < 2^r.
    Errors: ValueError for another number of variables.
    """
    if not 1 <= variables <= MOST_VARIABLES:
        raise ValueError(f"two_point_design: variables: expected 1..{MOST_VARIABLES}; got {variables}")
    degree = variables.bit_length()
    x = np.arange(1, variables + 1)
    cube = _product(_product(x, x, degree), x, degree)
    signs = np.ones((1, variables), np.int8)
    # Each bit of a and b doubles the sample. The second half (bit 1) negates the variables whose x or x³ has the bit.
    for bits in (x, cube):
        for bit in range(degree):
            column = (1 - 2 * (bits >> bit & 1)).astype(np.int8)
            signs = np.concatenate([signs, signs * column])
    return signs


def _product(a: np.ndarray, b: np.ndarray, degree: int) -> np.ndarray:
    """Product in GF(2^degree), elements as bits of their coefficients."""
    result = np.zeros_like(a)
    for bit in range(degree):
        result ^= np.where(b >> bit & 1, a, 0)
        a = a << 1
        a = np.where(a >> degree & 1, a ^ _PRIMITIVE[degree], a)
    return result
