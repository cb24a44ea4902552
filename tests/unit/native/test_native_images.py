"""Images from bytes: the kernel's pixels are torch's, bit for bit, and so are whole batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_reference import needs_kernels, variant
from torch import Tensor

from coterie.core.settings import Local
from coterie.data.augment import CropFlip, Normalise
from coterie.data.batches import DataShard
from coterie.data.datasets import Dataset
from coterie.native.images import gather
from coterie.native.switch import kernels

__all__ = ["variant"]  # a fixture

pytestmark = needs_kernels

MEAN, STD = (0.49, 0.25, 0.7), (0.24, 1.0, 0.31)


def bytes_of(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 3), st.integers(5, 37), st.integers(5, 37)),
    count=st.integers(1, 70),
    padding=st.integers(0, 4),
    border=st.sampled_from(["reflect", "constant"]),
    seed=st.integers(0, 2**31),
)
@example(shape=(1, 1, 5, 5), count=1, padding=4, border="reflect", seed=0)
@example(shape=(2, 3, 32, 32), count=64, padding=4, border="constant", seed=1)
def test_windows_have_the_pixels_of_torch(
    variant: str, shape: tuple[int, ...], count: int, padding: int, border: str, seed: int
) -> None:
    store = bytes_of(shape, seed)
    draw = np.random.default_rng(seed)
    rows = torch.from_numpy(draw.integers(0, len(store), size=count))
    rows[0], rows[-1] = 0, len(store) - 1  # at the ends of the store
    crop = CropFlip(padding, border)  # type: ignore[arg-type]
    table = crop.draw(len(store), draw)
    mean, std = MEAN[: shape[1]], STD[: shape[1]]
    normalise = Normalise(mean, std)
    images = normalise.unit(store[rows])
    expected = normalise(crop(images, rows, table))
    reflect = border == "reflect"
    found = gather(store, rows, mean, std, **table, padding=padding, reflect=reflect)
    assert torch.equal(found, expected)
    assert torch.equal(gather(store, rows, mean, std), normalise(images))
    assert torch.equal(gather(store, rows, (), ()), images)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("mirrored", [False, True])
def test_the_edges_of_the_store(mirrored: bool) -> None:
    """Every window of a store of one image, where all bytes around it are somebody else's."""
    store = bytes_of((1, 2, 9, 7), 3)
    crop = CropFlip(border="constant")
    rows = torch.tensor([0])
    for top in range(9):
        for left in range(9):
            table = {
                "starts": torch.tensor([[top, left]]),
                "mirrored": torch.tensor([mirrored]),
            }
            expected = crop(Normalise((), ()).unit(store), rows, table)
            assert torch.equal(gather(store, rows, (), (), **table, padding=4), expected)


@pytest.mark.usefixtures("variant")
def test_an_empty_choice_is_an_empty_batch() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert gather(bytes_of((3, 1, 8, 8), 0), none, (), ()).shape == (0, 1, 8, 8)


def test_what_the_kernel_would_trust_is_checked() -> None:
    store, rows = bytes_of((3, 1, 8, 8), 0), torch.tensor([0, 2])
    windows = {"starts": torch.zeros(3, 2, dtype=torch.int64), "mirrored": torch.zeros(3).bool()}
    for wrong in (torch.tensor([3]), torch.tensor([-1])):
        with pytest.raises(IndexError, match="there are 3 images"):
            gather(store, wrong, (), ())
    with pytest.raises(ValueError, match="contiguous bytes"):
        gather(store.transpose(2, 3), rows, (), ())
    with pytest.raises(ValueError, match="contiguous bytes"):
        gather(store.float(), rows, (), ())
    with pytest.raises(ValueError, match="a border of 8 around images of 8 x 8"):
        gather(store, rows, (), (), **windows, padding=8)
    with pytest.raises(ValueError, match="windows of 2 images for 3"):
        gather(store, rows, (), (), starts=windows["starts"][:2], mirrored=windows["mirrored"])
    with pytest.raises(ValueError, match="belong together"):
        gather(store, rows, (), (), starts=windows["starts"])


def dataset(shape: tuple[int, ...], dtype: type = np.uint8) -> Dataset:
    generator = np.random.default_rng(5)
    x = generator.integers(0, 256, size=(50, *shape)).astype(dtype)
    y = np.arange(50) % 3
    mean, std = MEAN[: shape[0]], STD[: shape[0]]
    return Dataset(
        *(x, y, x[::-1][:20], y[:20], 3, mean, std), name="made", path=Path("made"), fingerprint=""
    )


def shard(of: Dataset, augment: str, in_lanes: bool) -> DataShard:
    train, test = np.arange(3, 46), np.arange(20)
    return DataShard(of, train, test, augment=augment, in_lanes=in_lanes)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("augment", ["none", "crop-flip", "crop-flip-rotate", "resized-crop"])
@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 8, 9)])
def test_batches_are_the_same_in_lanes_and_not(augment: str, shape: tuple[int, ...]) -> None:
    local = Local(epochs=2, batch_size=10, accumulate=2)
    of = dataset(shape)
    views = ("train", "none", "train")
    made = []
    for in_lanes in (True, False):
        batches = shard(of, augment, in_lanes).batches(
            local, views, lambda purpose: np.random.default_rng(len(purpose) + ord(purpose[-1]))
        )
        with kernels(True):
            made.append(list(batches))
    assert len(made[0]) == len(made[1]) == 10
    for one, other in zip(*made, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.views, other.views, strict=True))
        assert torch.equal(one.y, other.y) and torch.equal(one.index, other.index)
        assert (one.epoch, one.last, one.progress, one.plain) == (
            *(other.epoch, other.last, other.progress, other.plain),
        )


@pytest.mark.parametrize("test", [False, True])
def test_sweeps_are_the_same_in_lanes_and_not(test: bool) -> None:
    of = dataset((3, 12, 12))
    with kernels(True):
        sweeps = [list(shard(of, "none", lanes).sweep(16, test)) for lanes in (True, False)]
    sweeps.append(list(shard(of, "none", in_lanes=True).sweep(16, test)))
    for one, *others in zip(*sweeps, strict=True):
        for other in others:
            assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert sweeps[0][0].x.stride()[0] == 1  # samples are innermost
    assert all(sweep[0].x.is_contiguous() for sweep in sweeps[1:])


def test_samples_that_are_no_bytes_go_the_old_way() -> None:
    of = dataset((3, 12, 12), np.float32)
    with kernels(True):
        sweeps = [list(shard(of, "crop-flip", lanes).sweep(16)) for lanes in (True, False)]
    for one, other in zip(*sweeps, strict=True):
        assert torch.equal(one.x, other.x) and one.x.is_contiguous()
