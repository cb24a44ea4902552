"""Measures of how much clients differ, from the number of samples by client and class."""

from collections.abc import Sequence

import numpy as np


def measure(
    table: np.ndarray, sigma: float = 1e-6, *, sizes: Sequence[int] | None = None
) -> dict[str, float]:
    """Measure a table of counts (clients x classes); clients without samples are left out.

    `sizes` are those of the clients, where samples without a label are not in the table. Without
    any label only `size_gini` is measured.

    With p_m the class shares of client m, p those of all samples together, M clients, K classes:

    - `beta_cib`: mean of log2 K - H(p_m), MFCL's class imbalance (its Eq. 6).
    - `beta_hetero_pairs`: sum over m, z of KL(p_m, p_z) / (M (M - 1)) in bits, with `sigma` for the
      share of an absent class and no normalisation after it (Eq. 7 as the text averages it);
      `beta_hetero_tables` divides by M^2 instead, as the printed tables do.
    - `jensen_shannon`: mean over clients of JS(p_m, p) in bits, 0 to 1.
    - `earth_mover`: mean over clients of sum_k |p_m(k) - p(k)|, 0 to 2: the form of Zhao et al.
      (2018), which is twice the total variation.
    - `effective_classes`: mean over clients of 2^H(p_m), 1 to K.
    - `size_gini`: Gini coefficient of the clients' sizes, 0 (equal) to 1 - 1/M.
    """
    counts = np.asarray(table, np.float64)
    all_sizes = counts.sum(axis=1) if sizes is None else np.asarray(sizes, np.float64)
    if not all_sizes.sum():
        raise ValueError("no client of the table has a sample")
    counts = counts[counts.sum(axis=1) > 0]
    if not counts.size:
        return {"size_gini": _gini(all_sizes)}
    shares = counts / counts.sum(axis=1, keepdims=True)
    mix = counts.sum(axis=0) / counts.sum()
    entropies, half = entropy(shares), float(entropy(mix)) / 2
    total = _sum_divergences(np.where(shares > 0, shares, sigma))
    clients = len(counts)
    middle = (shares + mix) / 2
    return {
        "beta_cib": max(0.0, float(np.log2(counts.shape[1]) - entropies.mean())),
        "beta_hetero_pairs": total / max(1, clients * (clients - 1)),
        "beta_hetero_tables": total / clients**2,
        "jensen_shannon": max(0.0, float((entropy(middle) - entropies / 2).mean()) - half),
        "earth_mover": float(np.abs(shares - mix).sum(axis=1).mean()),
        "effective_classes": float(np.exp2(entropies).mean()),
        "size_gini": _gini(all_sizes),
    }


def entropy(shares: np.ndarray) -> np.ndarray:
    """Compute the entropy in bits of every row of shares; a share of 0 adds nothing."""
    logarithms = np.log2(np.where(shares > 0, shares, 1.0))
    return np.asarray(-(shares * logarithms).sum(axis=-1))


def class_imbalance(counts: np.ndarray) -> float:
    """Compute beta^CIB = log2 K - H(p) of samples by class (MFCL's Eq. 6); 0 if balanced."""
    sizes = np.asarray(counts, np.float64)
    return max(0.0, float(np.log2(len(sizes)) - entropy(sizes / sizes.sum())))


def _sum_divergences(shares: np.ndarray) -> float:
    """Sum KL(p_m, p_z) over all ordered pairs; the exact sum is never below 0."""
    logarithms = np.log2(shares)
    own = len(shares) * float((shares * logarithms).sum())
    return max(0.0, own - float(shares.sum(axis=0) @ logarithms.sum(axis=0)))


def _gini(sizes: np.ndarray) -> float:
    ranked = np.sort(sizes)
    clients = len(ranked)
    ranks = 2 * np.arange(1, clients + 1) - clients - 1
    return max(0.0, float(ranks @ ranked / (clients * ranked.sum())))
