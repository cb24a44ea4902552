"""How far class shares are from equal ones."""

import numpy as np


def entropy(shares: np.ndarray) -> np.ndarray:
    """H in bits of every row of shares; a share of 0 adds nothing."""
    logarithms = np.log2(np.where(shares > 0, shares, 1.0))
    return np.asarray(-(shares * logarithms).sum(axis=-1))


def class_imbalance(counts: np.ndarray) -> float:
    """beta^CIB = log2 K - H(p) of samples by class (MFCL's Eq. 6): 0 where all K are alike."""
    held = np.asarray(counts, np.float64)
    return max(0.0, float(np.log2(len(held)) - entropy(held / held.sum())))
