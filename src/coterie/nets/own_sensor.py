"""A sensor of the user's own for MFCL: a module with an `encoder` and a `decoder`.

    encoder   (n, *shape), images in [0, 1]  ->  (n, *code), the representation z
    decoder   (n, *code)                     ->  (n, *shape), images in [0, 1]

The paper trains any feature extractor this way. PeerNorm layers in it see both views of an image in
training, as those of the shipped sensors do.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.nets.build import Own, Shape, first_line, make_own
from coterie.nets.sensor import Autoencoder, Encoder

_TRIED = 2  # samples


def build_own_sensor(
    name: str, shape: Shape, options: Mapping[str, Any], own: Own | None = None
) -> Autoencoder:
    """Make the user's sensor and check it on a few samples; its code's shape is found by that.

    `own` is the user's object, where `method.sensor` names one that cannot be imported.
    """
    key = f"method.sensor = {name!r}"
    if own is None:
        own = registry.import_own(name, "method.sensor")
        if isinstance(own, nn.Module) or not callable(own):
            raise ConfigError(
                f"{key} must name a class or function that makes an nn.Module; a module with "
                "weights can only be passed from Python"
            )
    if isinstance(own, nn.Module) and options:
        raise ConfigError(f"method.sensor_options = {dict(options)}: {key} is made; give its class")
    try:
        sensor = make_own(own, options, shape)
    except Exception as error:  # whatever the user's code raises
        given = f" with method.sensor_options = {dict(options)}" if options else ""
        raise ConfigError(f"{key} cannot be made{given}: {first_line(error)}") from error
    encoder, decoder = (_find_part(sensor, part, key) for part in ("encoder", "decoder"))
    code = _try(encoder, decoder, key, shape)
    return Autoencoder(Encoder(encoder, code), decoder, bounded=True)


def _find_part(sensor: Any, part: str, key: str) -> nn.Module:
    """Take the encoder or decoder out of a sensor."""
    module = getattr(sensor, part, None)
    if not (isinstance(sensor, nn.Module) and isinstance(module, nn.Module)):
        raise ConfigError(
            f"{key} must make an nn.Module with two parts, encoder and decoder, that are modules "
            f"themselves; its {part} is a {type(module).__name__}"
        )
    return module


@torch.no_grad()
def _try(encoder: nn.Module, decoder: nn.Module, key: str, shape: Shape) -> Shape:
    """Encode and decode a few samples; return the shape of a representation.

    The pass also gives lazy layers their shapes, with weights drawn under the run's seed.
    """
    x = torch.linspace(0.0, 1.0, _TRIED * int(torch.Size(shape).numel())).reshape(_TRIED, *shape)
    whole = nn.ModuleList([encoder, decoder]).eval()
    try:
        z = encoder(x)
        again = decoder(z)
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(
            f"{key} cannot take samples of shape {shape}: {first_line(error)}"
        ) from error
    finally:
        whole.train()
    for part, output in (("encoder", z), ("decoder", again)):
        if not isinstance(output, Tensor) or output.dtype != torch.float32:
            gave = output.dtype if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ConfigError(f"{key}: its {part} must give a float32 tensor, not {gave}")
    if z.ndim < _TRIED or len(z) != _TRIED:
        raise ConfigError(
            f"{key}: its encoder must map (n, {', '.join(map(str, shape))}) to (n, ...); for n = 2 "
            f"it gave {list(z.shape)}"
        )
    if again.shape != x.shape:
        raise ConfigError(
            f"{key}: its decoder must give images of the shape that came in, {list(x.shape)}, not "
            f"{list(again.shape)}"
        )
    if not bool(((again >= 0.0) & (again <= 1.0)).all()):
        raise ConfigError(
            f"{key}: its decoder must give numbers in [0, 1], e.g. end with nn.Sigmoid(); it gave "
            f"{float(again.min()):.3g} to {float(again.max()):.3g}"
        )
    return tuple(z.shape[1:])
