"""Affine views of images: small rotations, zooms, shears and shifts with noise, for shapes.

Unlike a crop they keep the whole figure in sight and vary its slant, as handwriting does.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.data.augment_vectors import draw_normal, draw_walks, walk
from coterie.data.augment_views import Table

_IMAGE_AXES = 3


@dataclass(frozen=True)
class Affine:
    """Zoom, shear, rotate and shift each image about its centre, bilinear; then add noise.

    With a pixel p = (x, y) of the view in pixels from the centre, x to the right and y down, zoom
    f, shear b, angle a (counter-clockwise) and shift t, the image is read at

        q = 1/f [1  tan b] [cos a  -sin a] (p - t)
                [0    1  ] [sin a   cos a]

    All are uniform; the zoom in its logarithm, from 1/zoom to zoom. Beyond the image it is black.
    Gaussian noise is added to every pixel.
    """

    degrees: float = 20.0  # largest angle of the rotation, either way
    zoom: float = 1.2  # largest factor
    shear: float = 15.0  # largest angle of the shear in degrees, either way
    shift: float = 0.125  # largest shift along each axis, as a fraction of the side
    noise: float = 0.1  # deviation, of pixels in [0, 1]

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw an angle, a zoom, a shear and a shift along x and y for each sample, and noise."""
        bound = math.log(self.zoom)
        columns = {
            "angles": generator.uniform(-self.degrees, self.degrees, samples),
            "zooms": np.exp(generator.uniform(-bound, bound, samples)),
            "shears": generator.uniform(-self.shear, self.shear, samples),
            "shifts": generator.uniform(-self.shift, self.shift, (samples, 2)),
        }
        drawn = {name: torch.from_numpy(column) for name, column in columns.items()}
        return drawn | {"noise": draw_normal(generator)} | draw_walks(samples, generator)

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Return the views of the images at the positions `rows` of the shard."""
        height, width = images.shape[2:]
        names = ("angles", "zooms", "shears", "shifts")
        drawn = {name: table[name][rows] for name in names}
        angle, slant = drawn["angles"].deg2rad(), drawn["shears"].deg2rad().tan()
        cosine, sine, slant = (t[:, None, None] for t in (angle.cos(), angle.sin(), slant))
        right, down = drawn["shifts"][:, :, None, None].unbind(1)
        # written out in float64: a matrix product may round differently in another batch
        x = _centred(width)[None, None, :] - right * width
        y = _centred(height)[None, :, None] - down * height
        x, y = cosine * x - sine * y, sine * x + cosine * y
        zoom = drawn["zooms"][:, None, None]
        x, y = (x + slant * y) / zoom, y / zoom
        grid = torch.stack([x * (2.0 / width), y * (2.0 / height)], dim=3)
        grid = grid.to(images.device, torch.float32)
        views = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
        if not self.noise:
            return views
        noise = table["noise"][walk(table, rows, views[0].numel())].reshape(views.shape)
        return views.add_(noise.to(views.device), alpha=self.noise)

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require images."""
        shape = samples.shape[1:]
        if len(shape) == _IMAGE_AXES:
            return None
        return f"takes images, the data has samples of shape {shape}"


def _centred(size: int) -> Tensor:
    """Return the pixels of a side, counted from its centre."""
    return torch.arange(size, dtype=torch.float64) - (size - 1) / 2.0
