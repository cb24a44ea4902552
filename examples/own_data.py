"""Train on your own arrays: `python examples/own_data.py`.

Three sites with names, each with its own skew, made from the digits of scikit-learn. Every site
keeps a quarter of its samples to test on.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_digits

import coterie

Samples = tuple[np.ndarray, np.ndarray]


def make_sites() -> dict[str, Samples]:
    """North sees mostly low digits, south mostly high ones, west all of them."""
    values, labels = load_digits(return_X_y=True)
    images = (values.reshape(-1, 8, 8) * 15).astype(np.uint8)
    draw = np.random.default_rng(0).random(len(labels))
    low = labels < 5
    north = np.where(low, draw < 0.6, draw < 0.05)
    south = ~north & np.where(low, draw > 0.95, draw > 0.4)
    west = ~north & ~south
    chosen = {"north": north, "south": south, "west": west}
    return {name: (images[rows], labels[rows]) for name, rows in chosen.items()}


def main() -> None:
    """Train one model for the three sites and test it at each of them."""
    train: dict[str, Samples] = {}
    test: dict[str, Samples] = {}
    for name, (x, y) in make_sites().items():
        held = len(y) // 4
        train[name], test[name] = (x[held:], y[held:]), (x[:held], y[:held])
    everything = tuple(np.concatenate(part) for part in zip(*test.values(), strict=True))

    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        local = {"epochs": 5, "batch_size": 32, "lr": 0.05}
        result = coterie.fit(train, test=everything, out=out, rounds=8, local=local)
        print(f"all sites  accuracy {result.metrics['accuracy']:.4f}")
        for name, (x, y) in test.items():
            samples = len(train[name][1])
            print(f"{name:<10} accuracy {result.score(x, y):.4f}  {samples} samples")


if __name__ == "__main__":
    main()
