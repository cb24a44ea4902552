"""Entropy of class shares, and MFCL's measure of class imbalance."""

import numpy as np


def entropy(shares: np.ndarray) -> np.ndarray:
    """Compute the entropy in bits of every row of shares; a share of 0 adds nothing."""
    logarithms = np.log2(np.where(shares > 0, shares, 1.0))
    return np.asarray(-(shares * logarithms).sum(axis=-1))


def class_imbalance(counts: np.ndarray) -> float:
    """Compute beta^CIB = log2 K - H(p) of samples by class (MFCL's Eq. 6); 0 if balanced."""
    sizes = np.asarray(counts, np.float64)
    return max(0.0, float(np.log2(len(sizes)) - entropy(sizes / sizes.sum())))
