"""The private mean against its formula as a plain loop, and its noise against the normal law."""

import math

import numpy as np
import torch
from neighbours import distance, find_problem, make_weights

from coterie.kit.private_mean import draw_normal, draw_uniform, private_mean


class Repeatable:
    """Entropy that a test can draw twice."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def __call__(self, count: int) -> bytes:
        return self._draw.bytes(count)


def test_neighbouring_sets_of_clients_never_differ_by_more_than_clip_over_expected() -> None:
    problems = [f"{number}: {said}" for number in range(200) if (said := find_problem(number))]
    assert not problems


def test_the_mean_is_the_formula() -> None:
    draw = np.random.default_rng(3)
    start, sent = make_weights(draw, 1.0), [make_weights(draw, 2.0) for _ in range(4)]
    clip, expected = 3.0, 2.5
    mean = private_mean(start, sent, clip=clip, noise=0.0, expected=expected)
    for name, tensor in start.items():
        for at in np.ndindex(*tensor.shape) if tensor.is_floating_point() else ():
            change = 0.0
            for weights in sent:
                norm = distance(weights, start)
                change += (float(weights[name][at]) - float(tensor[at])) * min(1.0, clip / norm)
            assert math.isclose(float(mean[name][at]), float(tensor[at]) + change / expected)
    assert torch.equal(mean["batches"], start["batches"])


def test_dtypes_stay_and_nobody_is_changed() -> None:
    start = {"w": torch.zeros(3), "h": torch.zeros(2, dtype=torch.bfloat16), "n": torch.tensor(4)}
    sent = {"w": torch.ones(3), "h": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(9)}
    mean = private_mean(start, [sent], clip=100.0, noise=0.0, expected=2.0)
    assert {name: tensor.dtype for name, tensor in mean.items()} == {
        name: tensor.dtype for name, tensor in start.items()
    }
    assert mean["w"].tolist() == [0.5] * 3 and int(mean["n"]) == 4
    assert start["w"].tolist() == [0.0] * 3 and sent["w"].tolist() == [1.0] * 3


def test_without_anybody_there_is_noise_of_the_right_deviation() -> None:
    start = {"w": torch.full((400, 500), 7.0, dtype=torch.float64)}
    mean = private_mean(start, [], clip=2.0, noise=1.5, expected=6.0, entropy=Repeatable(1))
    noise = (mean["w"] - 7.0) / (1.5 * 2.0 / 6.0)
    count = noise.numel()
    # five deviations of the estimates: fixed draws, so that the outcome is too
    assert abs(float(noise.mean())) < 5.0 / math.sqrt(count)
    assert abs(float(noise.var()) - 1.0) < 5.0 * math.sqrt(2.0 / count)


def test_normal_draws_are_normal() -> None:
    drawn = draw_normal(1_500_001, Repeatable(2))  # more than one chunk, and an odd number
    count = len(drawn)
    assert abs(drawn.mean()) < 5.0 / math.sqrt(count)
    assert abs(drawn.var() - 1.0) < 5.0 * math.sqrt(2.0 / count)
    assert abs((drawn**4).mean() - 3.0) < 5.0 * math.sqrt(96.0 / count)
    for bound in (-3.0, -1.0, 0.5, 2.0):
        share = 0.5 * math.erfc(-bound / math.sqrt(2.0))
        spread = math.sqrt(share * (1.0 - share) / count)
        assert abs((drawn < bound).mean() - share) < 5.0 * spread
    halves = drawn[: count // 2] * drawn[count // 2 : 2 * (count // 2)]
    assert abs(halves.mean()) < 5.0 / math.sqrt(count // 2)  # of the two of a pair, no one follows


def test_draws_come_from_the_system_and_differ_each_time() -> None:
    assert not np.array_equal(draw_normal(8), draw_normal(8))
    uniform = draw_uniform(1000)
    assert uniform.min() >= 0.0 and uniform.max() < 1.0
    assert draw_uniform(2, lambda count: b"\xff" * count).max() < 1.0
    assert np.isfinite(draw_normal(2, lambda count: b"\xff" * count)).all()
