"""BYOL (Grill et al. 2020): predict the target network's projection of the other view.

    loss = D(q1, sg z'2) / 2 + D(q2, sg z'1) / 2,   D = -cos,  q = predictor(z),  z' of the target
    target = m target + (1 - m) online               after every step

which is BYOL's 2 - 2 cos up to scale and shift. In a federation the target stays on its client
across rounds (`local`; a client's first target is the global model), restarts each round from the
global model (`reset`), or is sent and averaged like the rest (`aggregate`).
"""

from dataclasses import dataclass
from typing import Literal, final

from coterie import kit
from coterie.kit import Backbone, Batch, Loss, Network, Objective, fields, mlp_head, self_supervised


@final
@dataclass(frozen=True)
class BYOL(Objective):
    """Two views, a predictor and a target network. Takes no labels."""

    momentum: fields.Decay = 0.99  # m of the target
    target: Literal["local", "reset", "aggregate"] = "local"
    hidden: fields.Width = 1024  # width inside projector and predictor

    views = ("train", "train")
    warning = self_supervised.warn_of_collapse

    @property
    def private(self) -> tuple[str, ...]:
        """The target's names, unless it is averaged."""
        return () if self.target == "aggregate" else ("target.",)

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone, projector, predictor, and the target's backbone and projector."""
        width = self_supervised.require_projection("byol", projection)
        projector = mlp_head((backbone.width, self.hidden, width))
        predictor = mlp_head((width, self.hidden, width))
        return kit.TargetNetwork(backbone, projector=projector, predictor=predictor)

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute the symmetric distance to the target's projections."""
        assert isinstance(net, kit.TargetNetwork)
        one, two = net.each(batch.views)
        assert one.p is not None and two.p is not None
        total = kit.losses.symmetric_distance(one.p, two.p, *net.goals(batch.views))
        return Loss(total, notes=self_supervised.geometry(one.z, two.z), outputs=(one, two))

    def after_step(self, net: Network, progress: float) -> None:
        """Move the target towards the online network, if the network has one."""
        if isinstance(net, kit.TargetNetwork):
            kit.follow(net.target, net, self.momentum)

    def after_load(self, net: Network, first: bool) -> None:
        """Set the target to the received model: a client's first time, or in every round."""
        fresh = self.target == "reset" or (self.target == "local" and first)
        if fresh and isinstance(net, kit.TargetNetwork):
            net.restart()
