"""Subsets of the samples: balanced, with a long tail, or held out."""

from collections.abc import Callable

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError

_SPLIT_SEED = 0
_TEST_SHARE = 5  # one sample in five is held out
_ROUNDING = 1e-9  # tolerance for whole numbers with a rounding error


def select(
    labels: np.ndarray, classes: int, seed: int, limit: int = 0, imbalance: float = 1.0
) -> np.ndarray:
    """Select the training samples to keep, as sorted indices; with the defaults, all.

    `imbalance` rho makes a long tail (Cao et al. 2019): class k of K keeps
    n_max * rho^(-k / (K - 1)) samples, n_max being the size of the largest class. `limit` then
    keeps that many of the rest, with classes as equal in size as they allow; samples without a
    label count as one more class.
    """
    if not (np.isfinite(imbalance) and imbalance >= 1):
        raise ConfigError(f"data.imbalance={imbalance} must be 1 (no long tail) or more")
    if limit < 0:
        raise ConfigError(f"data.limit={limit} must be 0 (all samples) or more")
    rows = np.arange(len(labels))
    if imbalance > 1:
        if (missing := int((labels < 0).sum())) > 0:
            raise ConfigError(
                f"data.imbalance={imbalance} is for classes, and {missing} of {len(labels)} "
                "training samples have no label; leave it out"
            )
        sizes = shape_tail(np.bincount(labels, minlength=classes), imbalance)
        rows = _draw(rows, labels, sizes, seeds.generator(seed, "subset/imbalance"))
    if limit:
        numbers = labels if (labels >= 0).all() else labels + 1
        sizes = share_equally(np.bincount(numbers[rows], minlength=classes), limit)
        rows = _draw(rows, numbers, sizes, seeds.generator(seed, "subset/limit"))
    return rows


def shape_tail(counts: np.ndarray, imbalance: float) -> np.ndarray:
    """Compute how many samples every class keeps in a long tail: at least one, if it has any."""
    ranks = np.arange(len(counts)) / max(len(counts) - 1, 1)
    wanted = np.floor(counts.max() * imbalance**-ranks + _ROUNDING).astype(np.int64)
    kept: np.ndarray = np.minimum(counts, np.maximum(wanted, 1))
    return kept


def share_equally(counts: np.ndarray, limit: int) -> np.ndarray:
    """Share `limit` samples equally among classes; what a small class lacks goes to the others."""
    total, present = int(counts.sum()), int(np.count_nonzero(counts))
    if limit > total:
        raise ConfigError(
            f"data.limit={limit} is more than the {total} training samples there are; lower it"
        )
    if limit < present:
        raise ConfigError(
            f"data.limit={limit} leaves some of the {present} classes without a sample; set it to "
            f"{present} or more"
        )
    sizes = np.zeros_like(counts)
    while (left := limit - int(sizes.sum())) > 0:
        unfilled = np.flatnonzero(sizes < counts)
        each = left // len(unfilled)
        if each:
            sizes[unfilled] = np.minimum(counts[unfilled], sizes[unfilled] + each)
        else:
            sizes[unfilled[:left]] += 1
    return sizes


def set_aside(labels: np.ndarray, seed: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Set aside `share` of every class; return the indices that remain and those set aside."""
    random = seeds.generator(seed, "subset/holdout")
    left, aside = _split(labels, random, lambda members: round(share * members))
    if share and not aside.size:
        raise ConfigError(
            f"data.holdout={share} sets none of the {len(labels)} training samples aside; raise it"
        )
    if len(kept := np.unique(labels[left])) < (classes := len(np.unique(labels))):
        raise ConfigError(
            f"data.holdout={share} leaves {len(kept)} of {classes} classes to train on; lower it"
        )
    return left, aside


def hold_out_fifth(
    labels: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Split into sorted training and test indices: every fifth sample in the order of classes.

    The order within a class is drawn. So a fifth of all, rounded down, is held out, and classes
    lose their fifth as evenly as possible. A class of one sample stays in the training set.
    """
    order = np.lexsort((random.permutation(len(labels)), labels))
    _, which, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    test = np.sort(order[_TEST_SHARE - 1 :: _TEST_SHARE])
    test = test[sizes[which[test]] > 1]
    return np.setdiff1d(np.arange(len(labels)), test), test


def hold_out(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split into sorted training and test indices: a fifth of every class, the same in every run.

    A class of one sample stays in the training set; larger classes have at least one test sample.
    """
    random = np.random.default_rng(_SPLIT_SEED)
    return _split(labels, random, lambda n: max(round(n / _TEST_SHARE), 1) if n > 1 else 0)


def _split(
    labels: np.ndarray, random: np.random.Generator, count: Callable[[int], int]
) -> tuple[np.ndarray, np.ndarray]:
    """Take `count(size)` random samples of every class out; return the sorted rest, and these."""
    taken = np.zeros(len(labels), bool)
    for k in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == k))
        taken[members[: count(len(members))]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def _draw(
    rows: np.ndarray, labels: np.ndarray, sizes: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Draw the given number of rows of every class without replacement, sorted."""
    kept = [
        random.permutation(rows[labels[rows] == k])[:size] for k, size in enumerate(sizes.tolist())
    ]
    return np.sort(np.concatenate(kept))
