"""What sets a client's data apart beside which samples it has: other features, other labels.

Every partition has these keys. A `Shift` is applied to the client's own training and test samples;
the test set of the server stays as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.errors import ConfigError
from coterie.core.fields import NonNegative, Share

if TYPE_CHECKING:
    from coterie.data.datasets import Groups

_BYTE = 255.0
_IMAGE_AXES = 4
_MOST_CHANNELS = 4
_CENTRE = 0.5  # contrast leaves a pixel of this brightness alone
# What strength means, one that is worth trying, and the greatest that makes sense.
_STRENGTHS = {
    "noise": ("the standard deviation of the last client's noise", 0.1, math.inf),
    "rotation": ("the widest angle in degrees", 45.0, 180.0),
    "style": ("how far gain, contrast and brightness may go", 0.5, 1.0),
}


@dataclass(frozen=True, slots=True)
class Shift:
    """What one client's samples undergo; the defaults change nothing."""

    noise: float = 0.0  # standard deviation on unit images
    seed: int = 0  # of the noise
    angle: float = 0.0  # degrees, counter-clockwise
    style: tuple[float, ...] = ()  # brightness, contrast, then a gain per channel
    classes: tuple[int, ...] = ()  # what every class is called here

    def images(self, images: np.ndarray, rows: np.ndarray, test: bool) -> np.ndarray:
        """The client's samples as float32, bytes as values in [0, 1]; `rows` are their indices.

        Bytes end within [0, 1]; samples that were floats have no known bounds and are not clipped.
        """
        if not (self.noise or self.angle or self.style):
            return images
        bounded = images.dtype == np.uint8
        found = images.astype(np.float32)
        if bounded:
            found /= np.float32(_BYTE)
        if self.angle:
            found = rotate(found, self.angle)
        if self.style:
            found = restyle(found, self.style)
        if self.noise:
            found += np.float32(self.noise) * gaussian(self.seed, rows, test, found.shape[1:])
        return np.clip(found, 0.0, 1.0) if bounded else found

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """The labels as this client calls them."""
        return np.array(self.classes, np.int64)[labels] if self.classes else labels

    def words(self) -> str:
        """A few words about it, for tables."""
        said = [f"noise {self.noise:.3g}"] if self.noise else []
        said += [f"angle {self.angle:+.3g}"] if self.angle else []
        said += ["own style"] if self.style else []
        said += ["labels swapped"] if self.classes else []
        return ", ".join(said)

    def to_plain(self) -> dict[str, Any]:
        """Fields that differ from their defaults."""
        neutral = asdict(Shift())
        return {key: value for key, value in asdict(self).items() if value != neutral[key]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Shift":
        """The shift that `to_plain` described; JSON has made lists of its tuples."""
        fields: dict[str, Any] = dict(plain)
        for name in fields.keys() & {"style", "classes"}:
            fields[name] = tuple(fields[name])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skewed:
    """The keys that all partitions share.

    `skew` makes features differ: `noise` (NIID-Bench: client i of N, counted from 1, has Gaussian
    noise of standard deviation strength i / N), `rotation` (one angle per client, evenly spread
    over [-strength, strength] degrees), `style` (brightness, contrast and a gain per channel,
    drawn once per client). `label_swap` is the share of clients that exchange classes in pairs.
    """

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

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse to rotate or restyle samples that are not images."""
        if self.skew in ("rotation", "style") and len(shape) + 1 != _IMAGE_AXES:
            raise ConfigError(
                f"partition.skew = {self.skew!r} is for images (channels, height, width) and the "
                f"samples have shape {tuple(shape)}; use partition.skew=noise or none"
            )

    def held_groups(self, groups: "Groups | None") -> np.ndarray | None:
        """Which of the data set's groups is behind every client; None where they are not."""
        return None

    def shifts(self, clients: Sequence[int], classes: int, seed: int) -> dict[int, Shift]:
        """The shift of every client that has one: a function of the seed and the client."""
        swaps = self._swaps(clients, classes, seed)
        found = {}
        for rank, client in enumerate(clients):
            features = self._features(rank, len(clients), client, seed)
            shift = Shift(**features, classes=swaps.get(client, ()))
            if shift.to_plain().keys() - {"seed"}:
                found[client] = shift
        return found

    def _features(self, rank: int, clients: int, client: int, seed: int) -> dict[str, Any]:
        from coterie.core import seeds

        if self.skew == "noise":
            own = seeds.derive(seed, "skew/noise", client=client)
            return {"noise": self.strength * (rank + 1) / clients, "seed": own}
        if self.skew == "rotation":
            place = 2 * rank / (clients - 1) - 1 if clients > 1 else 0.0
            return {"angle": self.strength * place}
        if self.skew == "style":
            drawn = seeds.generator(seed, "skew/style", client=client).uniform(
                -self.strength, self.strength, 2 + _MOST_CHANNELS
            )
            brightness, *factors = drawn.tolist()
            return {"style": (brightness / 2, *(1 + factor for factor in factors))}
        return {}

    def _swaps(self, clients: Sequence[int], classes: int, seed: int) -> dict[int, tuple[int, ...]]:
        """For the chosen clients (one at least), classes exchanged in pairs; an odd one stays."""
        from coterie.core import seeds

        if not self.label_swap:
            return {}
        chosen = max(1, int(self.label_swap * len(clients) + 0.5))
        order = seeds.generator(seed, "label-swap").permutation(len(clients))[:chosen]
        found = {}
        for client in sorted(clients[place] for place in order):
            drawn = seeds.generator(seed, "label-swap/classes", client=client).permutation(classes)
            first, second = drawn[: classes - classes % 2].reshape(-1, 2).T
            names = np.arange(classes)
            names[first], names[second] = second, first
            found[client] = tuple(names.tolist())
        return found


def gaussian(seed: int, rows: np.ndarray, test: bool, shape: Sequence[int]) -> np.ndarray:
    """Standard normal noise for samples; that of one depends on its index alone, on no other."""
    noise = np.empty((len(rows), *shape), np.float32)
    for place, row in enumerate(rows.tolist()):
        # Philox is a function of key and counter, so that every sample has a stretch of its own.
        bits = np.random.Philox(key=seed, counter=[0, 0, row, int(test)])
        np.random.Generator(bits).standard_normal(dtype=np.float32, out=noise[place])
    return noise


def rotate(images: np.ndarray, angle: float) -> np.ndarray:
    """Images turned about their centre by degrees counter-clockwise; bilinear, 0 from outside."""
    height, width = images.shape[-2:]
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, x = np.meshgrid(np.arange(height) - middle_y, np.arange(width) - middle_x, indexing="ij")
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    from_y, from_x = cosine * y + sine * x + middle_y, cosine * x - sine * y + middle_x
    top, left = np.floor(from_y).astype(int), np.floor(from_x).astype(int)
    flat = images.reshape(*images.shape[:-2], -1)
    turned = np.zeros_like(flat)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        weight = (1 - abs(from_y - row)) * (1 - abs(from_x - column)) * inside
        place = np.where(inside, row * width + column, 0).reshape(-1)
        turned += flat[..., place] * weight.reshape(-1).astype(np.float32)
    return turned.reshape(images.shape)


def restyle(images: np.ndarray, style: Sequence[float]) -> np.ndarray:
    """gain_c (contrast (x - 1/2) + 1/2) + brightness, for every channel c."""
    brightness, contrast, *gains = style
    gain = np.array(gains[: images.shape[1]], np.float32).reshape(-1, 1, 1)
    toned = np.float32(contrast) * (images - np.float32(_CENTRE)) + np.float32(_CENTRE)
    return np.asarray(gain * toned + np.float32(brightness))
