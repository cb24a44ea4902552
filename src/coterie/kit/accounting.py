"""What rounds with drawn clients and noise cost: epsilon of (epsilon, delta)-differential privacy.

One round is a sampled Gaussian mechanism. Every client takes part with probability `rate`, by its
own secret draw; a client more or less changes the sum of updates by at most C; the sum gets normal
noise of deviation `noise` * C. Neighbours differ by one client that is added or removed.

    rdp   Renyi divergences at orders from 1.1 to 63, converted to epsilon; quick
    pld   distributions of the privacy loss, as the package dp-accounting computes them; tighter

The divergence of order a of one round is that of Mironov, Talwar and Zhang (arXiv 1908.10530),

    log E[(1 - q + q exp((2z - 1) / (2 s^2)))^a] / (a - 1)        z ~ N(0, s^2), q rate, s noise

by the trapezoidal rule, which is exact to rounding for such integrands. dp-accounting has it for
whole orders and an upper bound for the others. What follows from a divergence is its business.
"""

import importlib.util
import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.settings import LEAST_NOISE, MOST_NOISE

Accountant = Literal["rdp", "pld"]

_ORDERS = (*(1.0 + tenths / 10.0 for tenths in range(1, 100)), *map(float, range(12, 64)))
_FINE = 8.0  # steps of the trapezoidal rule in a deviation; the error is below exp(-100)
_TAIL = 12.0  # deviations beyond which a normal distribution has no mass worth counting
_LOSS_STEP = 5e-5  # of the grid of privacy losses at noise 1 and above; an error of about 2e-6
_CLOSE = 1.001  # ratio of the bounds where the search for a noise ends


def check_installed() -> None:
    """Raise before the run starts if dp-accounting is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError(
            "privacy.clip needs the package dp-accounting to count epsilon: "
            "pip install 'coterie[privacy]'"
        )


def epsilon(
    noise: float, rate: float, rounds: int, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Compute the epsilon that holds with `delta` after a number of rounds."""
    _check(noise, rate, delta)
    return _count(noise, rate, rounds, delta, accountant) if rounds > 0 else 0.0


def count_rounds(
    noise: float,
    rate: float,
    delta: float,
    budget: float,
    most: int,
    accountant: Accountant = "rdp",
) -> int:
    """Count the rounds, `most` at most, whose epsilon does not exceed a budget."""
    fits, exceeds = 0, 1  # many rounds take long to count: they are tried last
    while epsilon(noise, rate, exceeds, delta, accountant) <= budget:
        if exceeds >= most:
            return most
        fits, exceeds = exceeds, min(2 * exceeds, most)
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if epsilon(noise, rate, middle, delta, accountant) <= budget:
            fits = middle
        else:
            exceeds = middle
    return fits


def find_noise(
    budget: float, rate: float, rounds: int, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Find the smallest noise, within a thousandth, with which rounds fit into a budget."""
    low, high = LEAST_NOISE, MOST_NOISE
    if epsilon(low, rate, rounds, delta, accountant) <= budget:
        return low
    if epsilon(high, rate, rounds, delta, accountant) > budget:
        raise ConfigError(f"no noise up to {high:g} gives an epsilon of {budget:g} or less")
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        if epsilon(middle, rate, rounds, delta, accountant) <= budget:
            high = middle
        else:
            low = middle
    unit = 10.0 ** (math.floor(math.log10(high)) - 3)
    return float(f"{math.ceil(high / unit) * unit:.4g}")  # four digits, rounded up, still fit


@lru_cache(maxsize=4096)
def _count(noise: float, rate: float, rounds: int, delta: float, accountant: Accountant) -> float:
    if accountant == "pld":
        composed = _privacy_loss(noise, rate).self_compose(rounds)
        return float(composed.get_epsilon_for_delta(delta))
    from dp_accounting import rdp  # an extra, and slow to import

    divergences = [rounds * divergence for divergence in _divergences(noise, rate)]
    return float(rdp.compute_epsilon(_ORDERS, divergences, delta)[0])


@lru_cache(maxsize=64)
def _divergences(noise: float, rate: float) -> tuple[float, ...]:
    """Compute the Renyi divergence of one round at every order."""
    orders = np.array(_ORDERS)
    variance = noise * noise
    if rate == 1.0:
        return tuple((orders / (2.0 * variance)).tolist())
    # the logarithm in the integrand is singular at a distance of pi * variance from the real line
    step = min(noise, variance) / _FINE
    z = np.arange(-_TAIL * noise, orders[-1] + _TAIL * noise, step)
    log_ratio = np.logaddexp(np.log1p(-rate), math.log(rate) + (2.0 * z - 1.0) / (2.0 * variance))
    log_density = -z * z / (2.0 * variance) + math.log(step / (noise * math.sqrt(2.0 * math.pi)))
    return tuple(
        max(0.0, float(np.logaddexp.reduce(order * log_ratio + log_density))) / (order - 1.0)
        for order in orders.tolist()
    )


@lru_cache(maxsize=2)
def _privacy_loss(noise: float, rate: float) -> Any:
    """Compute the distribution of the privacy loss of one round, rounded up where it is rounded."""
    from dp_accounting.pld import privacy_loss_distribution

    # losses grow with 1 / noise^2, and so does the grid that has to hold them
    step = _LOSS_STEP * max(1.0, 1.0 / noise**2)
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=step
    )


def _check(noise: float, rate: float, delta: float) -> None:
    if not LEAST_NOISE <= noise <= MOST_NOISE:
        raise ConfigError(f"noise = {noise!r} must be from {LEAST_NOISE:g} to {MOST_NOISE:g}")
    if not 0.0 < rate <= 1.0:
        raise ConfigError(f"rate = {rate!r} must be above 0 and at most 1")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r} must be between 0 and 1")
    check_installed()
