"""The measures of heterogeneity against naive loops, and against the printed tables of MFCL."""

import math

import numpy as np
import pytest

from coterie.data.heterogeneity import measure
from coterie.data.partition import divide
from coterie.data.partitions.windows import Windows

# scenario: printed beta_cib and beta_hetero; None where no rounding of the definition gives it
PRINTED = {
    1: (3.32, 17.94),
    2: (2.32, 15.14),
    3: (1.73, 12.84),
    4: (1.32, None),
    5: (1.00, None),
    6: (0.74, None),
    7: (0.51, 5.14),
    8: (0.32, 3.38),
    9: (0.15, 1.67),
    10: (0.00, 0.00),
    11: (6.64, 19.73),
    12: (None, None),
    13: (5.06, 17.79),
    20: (3.32, None),
    30: (2.32, None),
    70: (0.74, 5.60),
    109: (None, None),
    110: (0.00, 0.00),
}
WRONG = {  # scenario, column: printed, ours
    (4, "beta_hetero_tables"): (10.82, 10.7589),
    (5, "beta_hetero_tables"): (8.81, 8.8048),
    (6, "beta_hetero_tables"): (6.97, 6.9386),
    (12, "beta_cib"): (5.63, 5.6439),
    (12, "beta_hetero_tables"): (18.54, 18.5529),
    (20, "beta_hetero_tables"): (14.99, 14.9485),
    (30, "beta_hetero_tables"): (13.81, 12.4875),
    (109, "beta_cib"): (0.00, 0.0145),
    (109, "beta_hetero_tables"): (0.00, 0.1330),
}


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log2(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def entropy(p: list[float]) -> float:
    return -sum(a * math.log2(a) for a in p if a > 0)


def naive(table: list[list[int]], sigma: float) -> dict[str, float]:
    """Every measure as it is defined, one number at a time."""
    M, n = len(table), len(table[0])
    P = [[count / sum(row) for count in row] for row in table]
    total = sum(map(sum, table))
    mix = [sum(row[v] for row in table) / total for v in range(n)]
    smooth = [[p if p > 0 else sigma for p in row] for row in P]
    pairs = sum(kl(smooth[m], smooth[z]) for m in range(M) for z in range(M) if z != m)
    middles = [[(a + b) / 2 for a, b in zip(row, mix, strict=True)] for row in P]
    sizes = [sum(row) for row in table]
    return {
        "beta_cib": sum(math.log2(n) - entropy(p) for p in P) / M,
        "beta_hetero_pairs": pairs / (M * (M - 1)) if M > 1 else 0.0,
        "beta_hetero_tables": pairs / M**2,
        "jensen_shannon": sum(
            kl(p, middle) / 2 + kl(mix, middle) / 2 for p, middle in zip(P, middles, strict=True)
        )
        / M,
        "earth_mover": sum(abs(p[v] - mix[v]) for p in P for v in range(n)) / M,
        "effective_classes": sum(2 ** entropy(p) for p in P) / M,
        "size_gini": sum(abs(a - b) for a in sizes for b in sizes) / (2 * M * sum(sizes)),
    }


def windows(scenario: int, rule: str = "table") -> dict[str, float]:
    n = 10 if scenario <= 10 else 100
    labels = np.repeat(np.arange(n), 5000 if n == 10 else 500)
    made = divide(Windows(scenario, rule), labels, labels[:n], n, seed=0)  # type: ignore[arg-type]
    return measure(made.class_table(labels, n))


def printed(value: float, shown: float) -> bool:
    """Whether a value, rounded or cut off at two digits, is what the table shows."""
    return shown in (round(value, 2), math.floor(value * 100) / 100)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("clients", "classes"), [(1, 4), (2, 2), (5, 10), (12, 3)])
def test_equal_to_the_naive_loops(clients: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = random.integers(0, 30, (clients, classes)) * random.integers(0, 2, (clients, classes))
    table[:, 0] += 1
    for sigma in (1e-6, 1e-3):
        expected = naive(table.tolist(), sigma)
        assert measure(table, sigma) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scenario", PRINTED)
def test_the_printed_tables(scenario: int) -> None:
    found = windows(scenario)
    for key, shown in zip(("beta_cib", "beta_hetero_tables"), PRINTED[scenario], strict=True):
        if shown is not None:
            assert printed(found[key], shown), key
            continue
        wrong, ours = WRONG[scenario, key]
        assert found[key] == pytest.approx(ours, abs=6e-5)
        assert not printed(found[key], wrong)


@pytest.mark.parametrize("scenario", [1, 2, 4, 9, 12, 30])
def test_the_closed_form_of_windows(scenario: int) -> None:
    n, w = (10, scenario) if scenario <= 10 else (100, scenario - 10)
    level = math.log2(1 / (w * 1e-6))
    for rule in ("table", "plain"):
        found = windows(scenario, rule)
        assert found["beta_cib"] == pytest.approx(math.log2(n / w), abs=1e-9)
        # the closed form leaves out what absent classes add: the sigmas themselves
        assert found["beta_hetero_tables"] == pytest.approx(level * (n - w) / n, abs=3e-3)
        assert found["beta_hetero_pairs"] == pytest.approx(level * (n - w) / (n - 1), abs=3e-3)


def test_the_ends_of_the_scales() -> None:
    alike = measure(np.full((4, 8), 5))
    assert alike == pytest.approx(dict.fromkeys(alike, 0.0) | {"effective_classes": 8.0}, abs=1e-9)
    assert min(alike.values()) >= 0
    apart = measure(np.diag([10] * 64))
    assert apart["beta_cib"] == pytest.approx(6) and apart["effective_classes"] == 1
    assert apart["earth_mover"] == pytest.approx(2 * (1 - 1 / 64))
    assert 0.9 < apart["jensen_shannon"] < 1
    assert measure(np.array([[1, 0], [999, 0]]))["size_gini"] == pytest.approx(0.499)


def test_clients_without_samples() -> None:
    table = np.array([[3, 1], [0, 0], [1, 1]])
    found, without = measure(table), measure(table[[0, 2]])
    gini = found.pop("size_gini")
    assert gini > without.pop("size_gini") and found == without
    with pytest.raises(ValueError, match="no client"):
        measure(np.zeros((2, 3)))
