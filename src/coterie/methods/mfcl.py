"""MFCL: modular federated contrastive learning with Peer Normalization (2022, anonymous).

Clients train a small autoencoder together, the sensor f, g; the server trains everything that is
deep, the discriminator, on the representations that the clients' sensor makes of their images:

    sense     theta = sum_m n_m theta_m / sum_m n_m      theta_m descends L(x, g(f(x)))   (Eq. 1, 2)
    upload    z_ij = f(x_ij), j = 1, 2                   two views of every image, with theta
    contrast  the discriminator descends the objective on batches of pairs (z_i1, z_i2)

A round is one of federated averaging in `sense`, one upload in `upload`, one epoch of the server in
`contrast`; `run.rounds` counts the epochs. The objective of the run is the server's: `simclr` (the
paper's NT-Xent), `simsiam` or `byol`. `[local]` is how clients train the sensor.

Settled here, where the paper is open or its code differs (`nets/sensor.py` has the networks):

- Images are in [0, 1]. In `sense` both views of a batch go through the sensor together, as PN needs
  them. For the upload z_ij = f(x_ij) is a function of one view, for which PN is GroupNorm, and so
  it is for a test image. `upload_peers` has two other readings: `images`, the authors' run, where
  rows i and i + 16 of every 32 of one view are peers, in the test too; and `views`, where both
  views of an image are. Their group means are then opposite, so that each gives the other away.
- The paper sends representations once; its code encodes anew in every server step. `refresh`:
  `once` sends `views_cached` pairs of every image, of which epochs take turns; `epoch` sends one
  pair of every image before each epoch, instead of the last ones.
- Batches have all clients in proportion to what they sent: 32 of each of 10 of equal size.
- LARS has learning rate `server_lr` B / 256 with warm-up and one cosine over all epochs, and keeps
  its velocity between them. The paper's code adds both halves of NT-Xent, here is their mean.
- `drop` loses a share of the clients in the upload alone, the same ones in every upload; with
  fewer answers than `quorum` the first upload ends the run, a later one is passed over.
- The sensor's BatchNorm statistics are averaged or stay with the client as `net.bn_buffers` says;
  in the authors' code they stay, and every client encodes with its own.
- A linear classifier is trained afterwards, by an evaluator; or jointly with the server's epochs,
  with a stop-gradient, on z or h divided by their length (`joint`), for which labels are sent.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import kit
from coterie.kit import Bundle, ClientContext, Loss, Method, ServerContext, State, Tensors, fields
from coterie.nets.norm import Norm, Variance, halved, paired
from coterie.nets.own_sensor import build_own_sensor
from coterie.nets.sensor import (
    Autoencoder,
    Modular,
    Reads,
    Reconstruction,
    Sensed,
    SensorKind,
    build_sensor,
)

_SENSOR, _DISCRIMINATOR, _HEAD, _MEMORY = "sensor", "discriminator", "head", "optimizer"
_PAIRS, _LABELS = "pairs", "labels"
_BLOCK = 32  # images of one view that are encoded at once, of `upload_peers = "images"`
_LINEAR_RATE = 30.0  # of the joint classifier, for a full batch; that of the probes


@final
@dataclass(frozen=True)
class MFCL(Method):
    """A federated sensor, and a discriminator on the server."""

    share_representations: bool = False  # nothing runs until this is true
    share_labels: bool = False  # labels are sent with the representations
    joint: Reads = "no"  # what a joint classifier reads
    sensor: str = "code"  # or "table5", or "package.module:Class"
    sensor_width: fields.Width = 64  # channels of a representation
    sensor_norm: kit.NormKind = "pn"
    sensor_groups: fields.Width = 16  # of channels in "pn" and "gn"
    sensor_options: dict[str, Any] = field(default_factory=dict)  # arguments of one's own sensor
    peer_variance: Variance = "pooled"
    upload_peers: Literal["none", "images", "views"] = "none"
    loss: Reconstruction = "bce"
    sense_rounds: fields.Rounds = 15
    refresh: Literal["once", "epoch"] = "once"
    views_cached: fields.Width = 1  # pairs of every image under `once`
    precision: Literal["fp16", "fp32"] = "fp16"
    drop: fields.Share = 0.0  # delta
    quorum: fields.PositiveCount = 1  # Q
    server_batch: fields.BatchSize = 320  # pairs
    server_optimizer: Literal["lars", "sgd", "adam"] = "lars"
    server_lr: fields.Positive = 1.5  # for a batch of 256
    server_momentum: fields.Decay = 0.9
    server_weight_decay: fields.NonNegative = 1e-4
    server_warmup: fields.Count = 10  # epochs

    objectives = ("simclr", "simsiam", "byol")
    reduce: ClassVar = {_SENSOR: kit.Mean()}
    leaves: ClassVar[str] = (
        "weights of the sensor, its number of samples, and representations of all its images, from "
        "which images can be reconstructed; with method.share_labels their labels too"
    )

    def __post_init__(self) -> None:
        self._check_sensor()
        if self.joint != "no" and not self.share_labels:
            raise kit.ConfigError(
                f"method.joint = {self.joint!r} trains on labels at the server: it needs "
                "method.share_labels = true"
            )
        if self.refresh == "epoch" and self.views_cached > 1:
            raise kit.ConfigError(
                f"method.views_cached = {self.views_cached} is for method.refresh = 'once'; under "
                "'epoch' every upload is one new pair of each image"
            )

    def _check_sensor(self) -> None:
        """Refuse a sensor that is not known, and settings that it does not have."""
        if not isinstance(self.sensor, str):
            raise kit.ConfigError(
                "MFCL(sensor=...) takes a name; pass a class or module as "
                "method={'name': 'mfcl', 'sensor': ...}"
            )
        known = get_args(SensorKind)
        if ":" not in self.sensor and self.sensor not in known:
            raise kit.ConfigError(
                f"method.sensor = {self.sensor!r} is not known; it is one of: {', '.join(known)}, "
                "or 'package.module:Class'"
            )
        if ":" not in self.sensor and self.sensor_options:
            raise kit.ConfigError(
                f"method.sensor_options is for a sensor of your own; {self.sensor!r} takes none"
            )

    @property
    def labels(self) -> bool:
        """Labels are read where they are sent."""
        return self.share_labels

    def check(self, local: kit.Local) -> None:
        """Ask for the user's word that representations may leave their clients."""
        if not self.share_representations:
            raise kit.ConfigError(
                "mfcl sends representations of all images to the server, from which images can be "
                "reconstructed; if they may leave their clients, set "
                "method.share_representations=true"
            )

    def stages(self, rounds: int) -> tuple[kit.Stage, ...]:
        """Sensing, then one upload and all epochs, or an upload before every epoch."""
        sense = kit.Stage("sense", self.sense_rounds)
        send = kit.Stage("upload", 1, "all", self.drop, self.quorum, steady=True, required=True)
        send = replace(send, broadcast=self.send_encoder, client=self.encode, uploads={})
        send = replace(send, server=self.keep_pairs, arrays=self._declare_arrays())
        epoch = kit.Stage("contrast", rounds, "none", server=self.contrast)
        if self.refresh == "once":
            return sense, send, epoch
        again, epoch = replace(send, required=False), replace(epoch, rounds=1)
        return sense, send, epoch, *((again, epoch) * (rounds - 1))

    def _declare_arrays(self) -> dict[str, kit.Array]:
        """The pairs, a row for two views of a sample; the label of every row, where it is sent."""
        dtype, each = "float16" if self.precision == "fp16" else "float32", "views_cached"
        arrays = {_PAIRS: kit.Array(dtype, (2, "code"), each)}
        if self.share_labels:
            arrays[_LABELS] = kit.Array("int64", (), each, least=0, below="classes")
        return arrays

    def sizes(self, nets: kit.Nets, known: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
        """`code`: the shape of a representation."""
        sensor = nets[_SENSOR]
        assert isinstance(sensor, Autoencoder)
        return {"code": tuple(sensor.code)}

    def nets(self, build: kit.Builder) -> dict[str, kit.Network]:
        """The sensor, the discriminator with its heads, and both as one for images."""
        sensor = self._build_sensor(build)
        discriminator = build(shape=sensor.code, stem="none")
        discriminator.central = ("",)  # all of it
        assert isinstance(discriminator.backbone, kit.Backbone)
        whole = Sensed(
            copy.deepcopy(sensor.backbone),
            copy.deepcopy(discriminator.backbone),
            block=_BLOCK if self.upload_peers == "images" else 0,
        )
        projector = copy.deepcopy(discriminator.projector)
        model = Modular(whole, projector, build.classes, self.joint, build.settings.projection)
        return {_SENSOR: sensor, _DISCRIMINATOR: discriminator, "model": model}

    def _build_sensor(self, build: kit.Builder) -> Autoencoder:
        for kind in get_args(SensorKind):
            if self.sensor == kind:
                norm = Norm(self.sensor_norm, self.sensor_groups, variance=self.peer_variance)
                return build_sensor(kind, build.shape, norm, self.sensor_width)
        return build_own_sensor(self.sensor, build.shape, self.sensor_options, build.own_sensor)

    def init(self, nets: kit.Nets) -> Bundle:
        """Fresh networks; a joint classifier begins at zero."""
        groups = {key: nets.weights(key) for key in (_SENSOR, _DISCRIMINATOR)}
        model = nets["model"]
        assert isinstance(model, Modular)
        if isinstance(model.classifier, nn.Linear):
            sizes = {"weight": model.classifier.weight, "bias": model.classifier.bias}
            sizes |= {"push": sizes["weight"], "lift": sizes["bias"]}  # the velocities
            groups[_HEAD] = {name: torch.zeros_like(t.detach()) for name, t in sizes.items()}
        return Bundle(groups, {"classes": model.classes})

    def broadcast(self, server: Bundle, round: kit.Round) -> Bundle:
        """The sensor."""
        return Bundle({_SENSOR: server[_SENSOR]})

    def send_encoder(self, server: Bundle, round: kit.Round) -> Bundle:
        """The sensor's encoder alone."""
        weights = server[_SENSOR]
        return Bundle({_SENSOR: {n: t for n, t in weights.items() if n.startswith("backbone.")}})

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> kit.Answer:
        """Train the sensor."""
        net = ctx.net(down[_SENSOR], key=_SENSOR)
        kit.train(ctx, net, self._reconstruction)
        shared = ctx.shared(net)
        own = {name: t for name, t in ctx.weights(net).items() if name not in shared}
        ctx.keep(_seen_in_model(own, {}))  # the client's statistics, for its evaluation
        return Bundle({_SENSOR: shared}), None

    def _reconstruction(self, net: kit.Network, batch: kit.Batch) -> Loss:
        """L(x, g(f(x))): the same augmented images in and out, the mean over pixels."""
        assert isinstance(net, Autoencoder)
        x = torch.cat(batch.views).clamp(0.0, 1.0)
        with paired(net, len(batch.views)):
            return Loss(net.loss(x, self.loss))

    def encode(self, ctx: ClientContext, down: Bundle, state: State) -> kit.Answer:
        """Write pairs of representations of all images to a file, batch by batch."""
        weights = {**ctx.initial(_SENSOR), **down[_SENSOR]}  # the decoder has no part in it
        sensor = ctx.frozen(weights, key=_SENSOR)
        every = replace(ctx.local, epochs=self.views_cached, steps=0, accumulate=1, drop_last=False)
        half, labels = self.precision == "fp16", list[np.ndarray]()

        def rows() -> Iterator[np.ndarray]:
            for batch in ctx.batches("upload", local=every):
                z = torch.stack(self._encode_views(sensor, batch.views), dim=1)
                z = z.to("cpu", torch.float16 if half else torch.float32)
                if not bool(z.isfinite().all()):
                    raise kit.Diverged(f"its representations are not finite in {self.precision}")
                labels.append(batch.y.cpu().numpy())
                yield z.numpy()

        blobs = {_PAIRS: ctx.spool(_PAIRS, rows())}
        if self.share_labels:
            blobs[_LABELS] = ctx.spool(_LABELS, labels)
        return Bundle(blobs=blobs), None

    def _encode_views(self, sensor: kit.Frozen, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """f of every view: of each row by itself, unless `upload_peers` says who is its peer."""
        if self.upload_peers == "images":
            with halved(sensor.net, _BLOCK):
                return tuple(sensor.encode(view) for view in views)
        with paired(sensor.net, len(views)) if self.upload_peers == "views" else nullcontext():
            return sensor.encode(torch.cat(views)).chunk(len(views))

    def server_update(self, ctx: ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Average the sensors."""
        return ctx.step(server, ctx.reduce(replies)[_SENSOR], key=_SENSOR)

    def keep_pairs(self, ctx: ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Keep the representations that clients sent."""
        sent = ctx.reduce(replies).blobs
        blobs = {
            f"{what}/{client}": blob for client, held in sent.items() for what, blob in held.items()
        }
        ctx.metrics["clients"] = float(len(sent))
        ctx.metrics["bytes"] = float(sum(blob.nbytes for blob in blobs.values()))
        return Bundle(server.tensors, server.scalars, blobs)

    def contrast(self, ctx: ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Train the discriminator for one epoch over the pairs; the last epoch drops them."""
        pairs, labels = (_of(server.blobs, what) for what in (_PAIRS, _LABELS))
        pool = kit.PairPool(pairs, labels, self.views_cached)
        if not len(pool):
            raise kit.NoReplies("no representations have reached the server")
        net = ctx.net(server[_DISCRIMINATOR], key=_DISCRIMINATOR)
        device = next(net.parameters()).device
        head = {name: t.clone().to(device) for name, t in server.get(_HEAD).items()}
        classes, epoch, epochs = int(server.scalars["classes"]), ctx.round.step, ctx.round.steps

        def labelled(loss: Loss, pairs: kit.Pairs, share: float) -> dict[str, float]:
            """What is done with the labels of a batch, if there are any."""
            if pairs.y is None:
                return {}
            seen = {"beta_cib_batch": imbalance(pairs.y.numpy(), classes)}
            if head:
                seen["joint_loss"] = self._classify(head, loss, pairs.y.to(device), share)
            return seen

        memory = self._training.epoch(ctx, net, pool, server.get(_MEMORY), labelled)
        y = pool.labels(epoch)
        if y is not None:
            ctx.metrics["beta_cib_pool"] = imbalance(y, classes)
        groups = {_DISCRIMINATOR: ctx.weights(net, _DISCRIMINATOR), _MEMORY: memory}
        if head:
            groups[_HEAD] = {name: t.cpu() for name, t in head.items()}
        done = server.replace(**groups)
        return Bundle(done.tensors, done.scalars, {} if epoch + 1 == epochs else done.blobs)

    @property
    def _training(self) -> kit.server_training.ServerTraining:
        return kit.server_training.ServerTraining(
            batch_size=self.server_batch,
            optimizer=self.server_optimizer,
            lr=self.server_lr,
            momentum=self.server_momentum,
            weight_decay=self.server_weight_decay,
            warmup=self.server_warmup,
        )

    def _classify(self, head: Tensors, loss: Loss, y: Tensor, share: float) -> float:
        """A step of the joint classifier on both views, through which no gradient flows back."""
        read = [views.z if self.joint == "projection" else views.h for views in loss.outputs]
        x = F.normalize(torch.cat(read).detach(), dim=-1)
        rate = share * kit.server_training.full_rate(_LINEAR_RATE, self.server_batch)
        return kit.server_training.descend_linear(
            head, x, y.repeat(len(read)), rate, self.server_momentum
        )

    def model(self, server: Bundle) -> Tensors:
        """Sensor and discriminator as one network."""
        weights = _seen_in_model(server[_SENSOR], server[_DISCRIMINATOR])
        head = server.get(_HEAD)
        return weights | {f"classifier.{name}": head[name] for name in ("weight", "bias") if head}


def imbalance(y: np.ndarray, classes: int) -> float:
    """beta^CIB of samples with these labels."""
    return kit.class_imbalance(np.bincount(y, minlength=classes))


def _seen_in_model(sensor: Tensors, discriminator: Tensors) -> Tensors:
    """Weights of the two networks under the names they have in the one that is tested."""
    renamed: Tensors = {}
    for part, weights in (("sensor", sensor), ("discriminator", discriminator)):
        for name, tensor in weights.items():
            if name.startswith("backbone."):
                renamed[f"backbone.{part}.{name.removeprefix('backbone.')}"] = tensor
    return renamed | {n: t for n, t in discriminator.items() if n.startswith("projector.")}


def _of(blobs: Mapping[str, kit.Blob], what: str) -> dict[kit.ClientId, kit.Blob]:
    """The files of one kind by client."""
    named = (name.split("/") for name in blobs)
    return {int(client): blobs[f"{kind}/{client}"] for kind, client in named if kind == what}
