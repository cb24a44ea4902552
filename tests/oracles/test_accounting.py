"""Epsilon against published constants, closed forms and sums written as plain loops."""

import importlib.util
import math
from itertools import pairwise
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from published_epsilon import DELTA, NOISE, PRV, RATE, RDP, TOLERANCE, prv

from coterie.core.errors import ConfigError
from coterie.kit import accounting
from coterie.kit.accounting import count_rounds, epsilon, find_noise


def test_renyi_divergences_give_the_published_constant() -> None:
    assert epsilon(NOISE, RATE, 2250, DELTA) == pytest.approx(RDP, abs=TOLERANCE)


def test_privacy_losses_give_the_published_constant_less_its_two_margins() -> None:
    assert prv() == pytest.approx(PRV, abs=TOLERANCE)
    assert epsilon(NOISE, RATE, 2249, DELTA, "pld") < PRV - 0.01


def divergence(order: int, noise: float, rate: float) -> float:
    """That of a whole order is a sum over how many of the factors are of the client."""
    terms = [
        math.comb(order, k)
        * (1.0 - rate) ** (order - k)
        * rate**k
        * math.exp(k * (k - 1) / (2.0 * noise**2))
        for k in range(order + 1)
    ]
    return math.log(sum(terms)) / (order - 1)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.3), (1.5, 0.04), (8.0, 0.5), (0.3, 0.01)])
def test_divergences_of_whole_orders_are_binomial_sums(noise: float, rate: float) -> None:
    ours = dict(zip(accounting._ORDERS, accounting._divergences(noise, rate), strict=True))
    for order in (2, 3, 5, 8, 10):
        assert ours[float(order)] == pytest.approx(divergence(order, noise, rate), rel=1e-7)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.2), (1.5, 0.04), (5.0, 0.9)])
def test_divergences_stay_below_the_bounds_of_dp_accounting(noise: float, rate: float) -> None:
    theirs = RdpAccountant(accounting._ORDERS)
    theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)))
    pairs = zip(accounting._divergences(noise, rate), theirs.rdp, strict=True)
    assert all(ours <= bound * (1.0 + 1e-9) for ours, bound in pairs)


def exact_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Of the Gaussian mechanism without sampling (Balle and Wang, 2018), by bisection."""
    mu = math.sqrt(rounds) / noise

    def cdf(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    low, high = 0.0, 100.0
    while high - low > 1e-12:
        eps = (low + high) / 2.0
        spent = cdf(mu / 2.0 - eps / mu) - math.exp(eps) * cdf(-mu / 2.0 - eps / mu)
        low, high = (eps, high) if spent > delta else (low, eps)
    return high


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 10), (2.0, 3)])
def test_without_sampling_it_is_the_closed_form(noise: float, rounds: int) -> None:
    exact = exact_epsilon(noise, rounds, 1e-5)
    assert exact <= epsilon(noise, 1.0, rounds, 1e-5, "pld") <= exact + 1e-4
    assert exact <= epsilon(noise, 1.0, rounds, 1e-5, "rdp") <= 1.15 * exact


def test_rounds_add_up_and_noise_and_secrecy_save() -> None:
    spent = [epsilon(1.0, 0.1, rounds, 1e-5) for rounds in (0, 1, 2, 10, 100)]
    assert spent[0] == 0.0 and all(less < more for less, more in pairwise(spent))
    assert epsilon(2.0, 0.1, 10, 1e-5) < spent[3] < epsilon(1.0, 0.2, 10, 1e-5)


def test_a_budget_allows_rounds_up_to_it_and_not_one_more() -> None:
    rounds = count_rounds(1.0, 0.1, 1e-5, 4.0, 1000)
    assert epsilon(1.0, 0.1, rounds, 1e-5) <= 4.0 < epsilon(1.0, 0.1, rounds + 1, 1e-5)
    assert 1 < count_rounds(1.0, 0.1, 1e-5, 4.0, rounds - 1) == rounds - 1
    assert count_rounds(1.0, 0.1, 1e-5, 0.001, 1000) == 0


def test_the_smallest_noise_for_a_budget_fits_and_hardly_less_does() -> None:
    noise = find_noise(2.0, 0.1, 50, 1e-5)
    assert epsilon(noise, 0.1, 50, 1e-5) <= 2.0 < epsilon(0.997 * noise, 0.1, 50, 1e-5)
    assert find_noise(1e6, 0.1, 1, 1e-5) == 0.1


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((0.0, 0.1, 1, 1e-5), "noise = 0.0"),
        ((float("nan"), 0.1, 1, 1e-5), "noise = nan"),
        ((1.0, 0.0, 1, 1e-5), "rate = 0.0"),
        ((1.0, 1.5, 1, 1e-5), "rate = 1.5"),
        ((1.0, 0.1, 1, 0.0), "delta = 0.0"),
        ((1.0, 0.1, 1, 1.0), "delta = 1.0"),
    ],
)
def test_a_wrong_argument_is_named(values: tuple[Any, ...], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        epsilon(*values)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[privacy\]'"):
        epsilon(1.0, 0.1, 1, 1e-5)
