"""Feature and label skew: changes to the samples of a client, beside which samples it has.

Every partition has these keys. A `Shift` is applied to the client's own training and test samples;
the test set of the server stays as it is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.fields import NonNegative, Share
from coterie.data.datasets import Groups

Labels = np.ndarray  # the class of every training sample
Shares = dict[int, np.ndarray]  # the training indices of every client
Swap = tuple[int, ...]  # the new label of every class

_BYTE = 255.0
_IMAGE_AXES = 4
_MOST_CHANNELS = 4
_CENTRE = 0.5  # the brightness that a change of contrast leaves as it is
# The meaning of the strength, a reasonable value, and the maximum.
_STRENGTHS = {
    "noise": ("the standard deviation of the last client's noise", 0.1, math.inf),
    "rotation": ("the widest angle in degrees", 45.0, 180.0),
    "style": ("how far gain, contrast and brightness may go", 0.5, 1.0),
}


@dataclass(frozen=True, slots=True)
class Shift:
    """How the samples of one client are changed; the defaults change nothing."""

    noise: float = 0.0  # standard deviation on unit images
    seed: int = 0  # of the noise
    angle: float = 0.0  # degrees, counter-clockwise
    style: tuple[float, ...] = ()  # brightness, contrast, then a gain per channel
    classes: Swap = ()

    def change_images(self, images: np.ndarray, rows: np.ndarray, test: bool) -> np.ndarray:
        """Return the changed samples as float32; `rows` are their indices in the data set.

        Bytes are scaled to [0, 1] and clipped to it; floats have no known bounds.
        """
        if not (self.noise or self.angle or self.style):
            return images
        bounded = images.dtype == np.uint8
        changed = images.astype(np.float32)
        if bounded:
            changed /= np.float32(_BYTE)
        if self.angle:
            changed = rotate(changed, self.angle)
        if self.style:
            changed = restyle(changed, self.style)
        if self.noise:
            changed += np.float32(self.noise) * draw_noise(self.seed, rows, test, changed.shape[1:])
        return np.clip(changed, 0.0, 1.0) if bounded else changed

    def change_labels(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels that this client uses."""
        if not self.classes:
            return labels
        return np.where(labels < 0, labels, np.array(self.classes, np.int64)[labels])

    def describe(self) -> str:
        """Summarise the changes in a few words, for tables."""
        changes = [f"noise {self.noise:.3g}"] if self.noise else []
        changes += [f"angle {self.angle:+.3g}"] if self.angle else []
        changes += ["own style"] if self.style else []
        changes += ["labels swapped"] if self.classes else []
        return ", ".join(changes)

    def to_plain(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON can store them."""
        neutral = asdict(Shift())
        return {key: value for key, value in asdict(self).items() if value != neutral[key]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Shift":
        """Reconstruct a shift from `to_plain`; JSON has turned its tuples into lists."""
        lists = {key: tuple(value) for key, value in plain.items() if isinstance(value, list)}
        return cls(**(plain | lists))


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewed(ABC):
    """A rule that divides the training set among clients, with the keys that all of them share.

    `skew` makes features differ: `noise` (NIID-Bench: client i of N, counted from 1, has Gaussian
    noise of standard deviation strength i / N), `rotation` (one angle per client, evenly spread
    over [-strength, strength] degrees), `style` (brightness, contrast and a gain per channel,
    drawn once per client). `label_swap` is the share of clients that exchange classes in pairs.
    """

    labels: ClassVar[bool] = False  # whether it deals by class, and needs the label of every sample

    skew: Literal["none", "noise", "rotation", "style"] = "none"
    strength: NonNegative = 0.0
    label_swap: Share = 0.0

    def __post_init__(self) -> None:
        if self.skew == "none":
            return
        meaning, example, most = _STRENGTHS[self.skew]
        if not 0 < self.strength <= most or math.isinf(self.strength):
            limit = "" if math.isinf(most) else f" and at most {most:g}"
            raise ConfigError(
                f"partition.strength = {self.strength} with partition.skew = {self.skew!r}: it is "
                f"{meaning}, above 0{limit}; use e.g. partition.strength={example:g}, or "
                "partition.skew=none"
            )

    @property
    @abstractmethod
    def min_samples(self) -> int:
        """The minimum number of training samples of a client."""

    @abstractmethod
    def deal(self, labels: Labels, classes: int, seed: int, groups: Groups | None = None) -> Shares:
        """Assign training indices to every client, in the order in which they are dealt."""

    def check_shape(self, shape: Sequence[int]) -> None:
        """Reject samples that are not images where they would be rotated or restyled."""
        if self.skew in ("rotation", "style") and len(shape) + 1 != _IMAGE_AXES:
            raise ConfigError(
                f"partition.skew = {self.skew!r} is for images (channels, height, width) and the "
                f"samples have shape {tuple(shape)}; use partition.skew=noise or none"
            )

    def select_groups(self, groups: Groups | None) -> np.ndarray | None:
        """Return the data set's group of every client, or None if clients are not groups."""
        return None

    def draw_shifts(self, clients: Sequence[int], classes: int, seed: int) -> dict[int, Shift]:
        """Draw the shift of every client that has one, from the seed and the client alone."""
        swaps = self._draw_swaps(clients, classes, seed)
        shifts = {}
        for rank, client in enumerate(clients):
            features = self._draw_features(rank, len(clients), client, seed)
            shift = Shift(**features, classes=swaps.get(client, ()))
            if shift.to_plain().keys() - {"seed"}:
                shifts[client] = shift
        return shifts

    def _draw_features(self, rank: int, clients: int, client: int, seed: int) -> dict[str, Any]:
        if self.skew == "noise":
            own = seeds.derive(seed, "skew/noise", client=client)
            return {"noise": self.strength * (rank + 1) / clients, "seed": own}
        if self.skew == "rotation":
            fraction = 2 * rank / (clients - 1) - 1 if clients > 1 else 0.0  # from -1 to 1
            return {"angle": self.strength * fraction}
        if self.skew == "style":
            random = seeds.generator(seed, "skew/style", client=client)
            drawn = random.uniform(-self.strength, self.strength, 2 + _MOST_CHANNELS)
            brightness, *factors = drawn.tolist()
            return {"style": (brightness / 2, *(1 + factor for factor in factors))}
        return {}

    def _draw_swaps(self, clients: Sequence[int], classes: int, seed: int) -> dict[int, Swap]:
        """Choose clients (at least one) and exchange their classes in pairs; an odd class stays."""
        if not self.label_swap:
            return {}
        chosen = max(1, int(self.label_swap * len(clients) + 0.5))
        order = seeds.generator(seed, "label-swap").permutation(len(clients))[:chosen]
        swaps = {}
        for client in sorted(clients[index] for index in order):
            drawn = seeds.generator(seed, "label-swap/classes", client=client).permutation(classes)
            first, second = drawn[: classes - classes % 2].reshape(-1, 2).T
            labels = np.arange(classes)
            labels[first], labels[second] = second, first
            swaps[client] = tuple(labels.tolist())
        return swaps


def draw_noise(seed: int, rows: np.ndarray, test: bool, shape: Sequence[int]) -> np.ndarray:
    """Draw standard normal noise that depends, for each sample, on its index alone."""
    noise = np.empty((len(rows), *shape), np.float32)
    for position, row in enumerate(rows.tolist()):
        # Philox is a function of key and counter: every sample has its own part of the stream.
        bits = np.random.Philox(key=seed, counter=[0, 0, row, int(test)])
        np.random.Generator(bits).standard_normal(dtype=np.float32, out=noise[position])
    return noise


def rotate(images: np.ndarray, angle: float) -> np.ndarray:
    """Rotate images about their centre, counter-clockwise in degrees; bilinear, filled with 0."""
    height, width = images.shape[-2:]
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = np.meshgrid(np.arange(height) - middle_y, np.arange(width) - middle_x, indexing="ij")
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    from_y, from_x = cosine * y + sine * x + middle_y, cosine * x - sine * y + middle_x
    top, left = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    flat = images.reshape(*images.shape[:-2], -1)
    rotated = np.zeros_like(flat)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        weight = (1 - abs(from_y - row)) * (1 - abs(from_x - column)) * inside
        pixel = np.where(inside, row * width + column, 0).reshape(-1)
        rotated += flat[..., pixel] * weight.reshape(-1).astype(np.float32)
    return rotated.reshape(images.shape)


def restyle(images: np.ndarray, style: Sequence[float]) -> np.ndarray:
    """Compute gain_c (contrast (x - 1/2) + 1/2) + brightness for every channel c."""
    brightness, contrast, *gains = style
    gain = np.array(gains[: images.shape[1]], np.float32).reshape(-1, 1, 1)
    toned = np.float32(contrast) * (images - np.float32(_CENTRE)) + np.float32(_CENTRE)
    return np.asarray(gain * toned + np.float32(brightness))
