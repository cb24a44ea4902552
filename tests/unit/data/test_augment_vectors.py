"""Views of vectors and signals against loops over samples, and what they are drawn from."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from coterie.data.augment_vectors import JitterScaleCrop, MaskNoise, stretch
from coterie.data.augment_views import Table

NOT_BY_CHANCE = 1e-3  # a seeded test below it would be a wrong distribution


def drawn(transform: MaskNoise | JitterScaleCrop, samples: int, seed: int = 0) -> Table:
    return transform.draw(samples, np.random.default_rng(seed))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def read_pool(table: Table, name: str, sample: int, entries: int) -> np.ndarray:
    """What a sample reads of a pool, one entry after the other."""
    pool, position = table[name].numpy(), int(table["starts"][sample])
    values = []
    for _ in range(entries):
        values.append(pool[position % len(pool)])
        position += int(table["strides"][sample])
    return np.array(values)


def test_vectors_are_masked_and_jittered_as_a_loop_would() -> None:
    x, transform = normal(5, 7), MaskNoise()
    table = drawn(transform, 9)
    rows = torch.tensor([8, 0, 3, 3, 5])
    views = transform(x, rows, table)
    for k, row in enumerate(rows.tolist()):
        masked, noise = (read_pool(table, name, row, 7) for name in ("masked", "noise"))
        expected = np.where(masked, 0.0, x[k].numpy()) + 0.1 * noise
        np.testing.assert_allclose(views[k].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_three_of_ten_features_are_masked_and_noise_is_gaussian() -> None:
    views = MaskNoise()(torch.full((2000, 50), 100.0), torch.arange(2000), drawn(MaskNoise(), 2000))
    masked = views < 50.0
    assert abs(float(masked.double().mean()) - 0.3) < 0.01
    for axis in (0, 1):  # neither a feature nor a sample is masked more often than others
        shares = masked.double().mean(dim=axis)
        limit = 6 * (0.21 / masked.shape[axis]) ** 0.5
        assert float((shares - 0.3).abs().max()) < limit
    noise = views[masked].numpy()[::50] / 0.1
    assert stats.kstest(noise, stats.norm.cdf).pvalue > NOT_BY_CHANCE


def test_two_views_and_two_samples_have_noise_of_their_own() -> None:
    transform, rows = MaskNoise(mask=0.0), torch.arange(200)
    one, two = (transform(torch.zeros(200, 40), rows, drawn(transform, 200, s)) for s in (0, 1))
    assert abs(np.corrcoef(one.flatten(), two.flatten())[0, 1]) < 0.05
    among = np.corrcoef(one.numpy()) - np.eye(200)
    assert np.abs(among).max() < 0.9 and abs(among.mean()) < 0.01


def naive_stretch(signal: np.ndarray, length: float, position: float) -> np.ndarray:
    time = signal.shape[1]
    size = max(1, round(length * time))
    start = int(position * (time - size + 1))
    window = signal[:, start : start + size]
    at = np.clip((np.arange(time) + 0.5) * size / time - 0.5, 0, size - 1)
    return np.stack([np.interp(at, np.arange(size), channel) for channel in window])


@pytest.mark.parametrize("shape", [(3, 40), (1, 17), (2, 1)])
def test_signals_are_stretched_as_a_loop_would(shape: tuple[int, int]) -> None:
    x = normal(6, *shape)
    lengths = torch.tensor([0.5, 0.61, 0.77, 0.9, 0.99, 1.0], dtype=torch.float64)
    positions = torch.tensor([0.0, 0.999, 0.3, 0.5, 0.7, 0.4], dtype=torch.float64)
    views = stretch(x, lengths, positions)
    for k in range(6):
        expected = naive_stretch(x[k].numpy(), float(lengths[k]), float(positions[k]))
        np.testing.assert_allclose(views[k].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(views[5], x[5])  # a crop of all of it


def test_a_signal_is_stretched_scaled_jittered_and_may_lose_a_channel() -> None:
    x, transform = normal(40, 3, 20), JitterScaleCrop()
    rows = torch.arange(40).flip(0)
    table = drawn(transform, 40)
    views = transform(x, rows, table)
    for k, row in enumerate(rows.tolist()):
        noise = read_pool(table, "noise", row, 3 + 60)
        length, position = float(table["lengths"][row]), float(table["positions"][row])
        expected = naive_stretch(x[k].numpy(), length, position)
        expected *= 1.0 + 0.1 * noise[:3, None]
        expected += 0.05 * noise[3:].reshape(3, 20)
        if table["dropped"][row]:
            expected[int(3 * float(table["channels"][row]))] = 0.0
        np.testing.assert_allclose(views[k].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert table["dropped"].any()


def test_crops_are_half_the_signal_or_more_and_channels_are_dropped_evenly() -> None:
    table = drawn(JitterScaleCrop(), 20_000)
    uniform = stats.uniform(0.5, 0.5).cdf
    assert stats.kstest(table["lengths"].numpy(), uniform).pvalue > NOT_BY_CHANCE
    assert abs(float(table["dropped"].double().mean()) - 0.1) < 0.01
    only_drop = JitterScaleCrop(jitter=0.0, scale=0.0, drop=1.0)
    views = only_drop(torch.ones(6000, 3, 4), torch.arange(6000), drawn(only_drop, 6000))
    lost = views.sum(dim=2) == 0
    assert torch.equal(lost.sum(dim=1), torch.ones(6000, dtype=torch.int64))
    assert float((lost.double().mean(dim=0) - 1 / 3).abs().max()) < 0.03


def test_the_only_channel_of_a_signal_is_never_dropped() -> None:
    transform = JitterScaleCrop(jitter=0.0, scale=0.0, drop=1.0)
    views = transform(torch.ones(50, 1, 8), torch.arange(50), drawn(transform, 50))
    assert torch.equal(views, torch.ones(50, 1, 8))


def test_parameters_of_a_large_shard_take_little_memory() -> None:
    for transform in (MaskNoise(), JitterScaleCrop()):
        table = drawn(transform, 100_000)
        assert sum(column.nbytes for column in table.values()) < 50 * 100_000


@pytest.mark.parametrize(
    ("transform", "shape", "message"),
    [
        (MaskNoise(), (3, 8, 8), "takes vectors"),
        (MaskNoise(), (3, 8), "takes vectors"),
        (JitterScaleCrop(), (3, 8, 8), "takes signals"),
        (JitterScaleCrop(), (12,), "takes signals"),
    ],
)
def test_other_samples_are_refused(
    transform: MaskNoise | JitterScaleCrop, shape: tuple[int, ...], message: str
) -> None:
    problem = transform.find_problem(np.zeros((2, *shape), np.float32))
    assert problem is not None and problem.startswith(message) and str(shape) in problem
