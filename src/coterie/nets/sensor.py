"""The sensor of MFCL, a convolutional autoencoder, and the networks on its representations.

`code`, as the authors' code has it; z is as large as the image:

    encoder  Conv(c, w) N ReLU - Conv(w, w) N ReLU
    decoder  MaxPool2 - ConvT(w, w) N ReLU - ConvT(w, w) N ReLU - ConvT(w, c, stride 2) sigmoid

`table5`, as the paper prints it; z has half the image's sides:

    encoder  Conv(c, w) N ReLU MaxPool2 - Conv(w, w) N ReLU
    decoder  ConvT(w, w) N ReLU - ConvT(w, c, stride 2) N ReLU - Conv(c, c) sigmoid

All kernels are 3 x 3 with padding; w is 64. As printed, Table 5 gives 16 x 16 pixels for 32 x 32
and ends without a sigmoid, so one layer has stride 2 here and a sigmoid is added. An odd side is
rounded up by the pooling and restored by the decoder. Before a norm the `code` encoder has no
biases. For three channels `code` has 114,691 parameters, `table5` 77,853.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.settings import NormKind
from coterie.nets.backbones.simple_cnn import HalvingPool
from coterie.nets.build import Backbone, Shape, check_images
from coterie.nets.heads import Network, Outputs
from coterie.nets.norm import PeerNorm, Variance, norm_2d

SensorKind = Literal["code", "table5"]
Reads = Literal["no", "projection", "backbone"]

_SMALLEST = 4  # pixels of a side


class Encoder(nn.Module):
    """Encodes images, clipped to [0, 1], as representations of the shape `code`."""

    def __init__(self, layers: nn.Sequential, code: tuple[int, int, int]) -> None:
        super().__init__()
        self.layers, self.code = layers, code

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, *code)."""
        z: Tensor = self.layers(x.clamp(0.0, 1.0))
        return z


class Autoencoder(Network):
    """An encoder as the backbone, and a decoder that is trained with it."""

    def __init__(self, encoder: Encoder, decoder: nn.Module) -> None:
        super().__init__(encoder)
        self.decoder, self.code = decoder, encoder.code

    def logits(self, x: Tensor) -> Tensor:
        """The reconstruction before the sigmoid, in the shape of x."""
        logits: Tensor = self.decoder(self.encode(x))
        return logits


class Sensed(Backbone):
    """A discriminator on top of a sensor, as one backbone for images."""

    def __init__(self, sensor: nn.Module, discriminator: Backbone) -> None:
        super().__init__()
        self.sensor, self.discriminator = sensor, discriminator
        self.width = discriminator.width

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, width)."""
        h: Tensor = self.discriminator(self.sensor(x))
        return h


class Modular(Network):
    """Sensor, discriminator and projector as one network; a classifier may read z or h.

    The classifier sees them divided by their length. Clients train the sensor, the server the rest.
    """

    unit_images = True
    central = ("backbone.discriminator.", "projector.", "classifier.")

    def __init__(
        self, backbone: Sensed, projector: nn.Module | None, classes: int, reads: Reads, width: int
    ) -> None:
        """`width` is that of the projections, which a classifier may read."""
        width = width if reads == "projection" else backbone.width
        classifier = nn.Linear(width, classes) if reads != "no" else None
        super().__init__(backbone, projector=projector, classifier=classifier)
        self.classes, self.reads = classes, reads

    def forward(self, x: Tensor) -> Outputs:
        """Compute the outputs of all heads."""
        h = self.encode(x)
        z = h if self.projector is None else self.projector(h)
        if self.classifier is None:
            return Outputs(h, z)
        read = z if self.reads == "projection" else h
        return Outputs(h, z, None, self.classifier(F.normalize(read, dim=-1)))


def build_sensor(
    kind: SensorKind, shape: Shape, norm: NormKind, width: int = 64, variance: Variance = "pooled"
) -> Autoencoder:
    """Build the sensor for images of `shape`; reject other samples and small images."""
    check_images(shape, _SMALLEST, "a sensor")
    channels, rows, columns = shape
    lean = kind == "code" and norm != "none"

    def with_norm(layer: nn.Module, after: int) -> list[nn.Module]:
        norms = PeerNorm(after, views=1, var=variance) if norm == "pn" else norm_2d(norm, after)
        return [layer, norms, nn.ReLU()]

    def encoder_layer(before: int) -> list[nn.Module]:
        return with_norm(nn.Conv2d(before, width, 3, padding=1, bias=not lean), width)

    def decoder_layer() -> list[nn.Module]:
        return with_norm(nn.ConvTranspose2d(width, width, 3, padding=1), width)

    halve = HalvingPool(ceil_mode=True)
    even = (1 - rows % 2, 1 - columns % 2)
    double = nn.ConvTranspose2d(width, channels, 3, stride=2, padding=1, output_padding=even)
    if kind == "code":
        encoder = nn.Sequential(*encoder_layer(channels), *encoder_layer(width))
        decoder = nn.Sequential(halve, *decoder_layer(), *decoder_layer(), double)
        return Autoencoder(Encoder(encoder, (width, rows, columns)), decoder)
    encoder = nn.Sequential(*encoder_layer(channels), halve, *encoder_layer(width))
    last = nn.Conv2d(channels, channels, 3, padding=1)
    decoder = nn.Sequential(*decoder_layer(), *with_norm(double, channels), last)
    return Autoencoder(Encoder(encoder, (width, -(-rows // 2), -(-columns // 2))), decoder)
