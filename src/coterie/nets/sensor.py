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

Any other pair of an encoder and a decoder serves too: `nets/own_sensor.py`.
"""

from contextlib import nullcontext
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from coterie.nets.backbones.simple_cnn import HalvingPool
from coterie.nets.build import Backbone, Shape, check_images
from coterie.nets.heads import Network, Outputs
from coterie.nets.norm import Norm, halved

SensorKind = Literal["code", "table5"]
Reads = Literal["no", "projection", "backbone"]
Reconstruction = Literal["bce", "mse"]

_SMALLEST = 4  # pixels of a side


class Encoder(nn.Module):
    """Encodes images, clipped to [0, 1], as representations of the shape `code`."""

    def __init__(self, layers: nn.Module, code: Shape) -> None:
        super().__init__()
        self.layers, self.code = layers, code

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, *code)."""
        z: Tensor = self.layers(x.clamp(0.0, 1.0))
        return z


class Autoencoder(Network):
    """An encoder as the backbone, and a decoder that is trained with it.

    The decoder ends before the sigmoid; one that is `bounded` gives images in [0, 1] itself.
    """

    def __init__(self, encoder: Encoder, decoder: nn.Module, bounded: bool = False) -> None:
        super().__init__(encoder)
        self.decoder, self.code, self.bounded = decoder, encoder.code, bounded

    def reconstruct(self, x: Tensor) -> Tensor:
        """The image that is made of the representation of x."""
        decoded: Tensor = self.decoder(self.encode(x))
        return decoded if self.bounded else decoded.sigmoid()

    def loss(self, x: Tensor, kind: Reconstruction) -> Tensor:
        """L(x, g(f(x))), the mean over pixels: cross-entropy or squared error."""
        if kind == "mse":
            return F.mse_loss(self.reconstruct(x), x)
        if self.bounded:
            return F.binary_cross_entropy(self.reconstruct(x), x)
        return F.binary_cross_entropy_with_logits(self.decoder(self.encode(x)), x)


class Sensed(Backbone):
    """A discriminator on top of a sensor, as one backbone for images.

    With a `block` above 0 the halves of so many images are peers of each other in the sensor: what
    it gives for an image then depends on the others of its batch.
    """

    def __init__(self, sensor: nn.Module, discriminator: Backbone, block: int = 0) -> None:
        super().__init__()
        self.sensor, self.discriminator, self.block = sensor, discriminator, block
        self.width = discriminator.width

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, rows, columns) -> (n, width)."""
        with halved(self.sensor, self.block) if self.block else nullcontext():
            z = self.sensor(x)
        h: Tensor = self.discriminator(z)
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


def build_sensor(kind: SensorKind, shape: Shape, norm: Norm, width: int = 64) -> Autoencoder:
    """Build the sensor for images of `shape`; reject other samples and small images."""
    check_images(shape, _SMALLEST, "a sensor")
    channels, rows, columns = shape
    lean = kind == "code" and norm.kind != "none"

    def with_norm(layer: nn.Module, after: int) -> list[nn.Module]:
        return [layer, norm.make_2d(after), nn.ReLU()]

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
