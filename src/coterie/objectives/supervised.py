"""Supervised classification: CE(C(P(E(x))), y).

The classifier sits on z, behind the projector, as in MOON, FedProc and FedSSC; with
`net.projection = 0` there is no projector and it sits on h.
"""

from dataclasses import dataclass
from typing import final

from torch.nn import functional as F

from coterie.kit import Backbone, Batch, Loss, Network, Objective, make_classifier, moon_projector


@final
@dataclass(frozen=True)
class Supervised(Objective):
    """Cross-entropy on labels."""

    labels = True

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        """Build backbone, projector, classifier."""
        projector = moon_projector(backbone.width, projection) if projection else None
        width = projection or backbone.width
        one_logit = not projection and getattr(backbone, "one_logit", False)
        classifier = make_classifier(width, classes, one_logit)
        return Network(backbone, projector=projector, classifier=classifier)

    def loss(self, net: Network, batch: Batch) -> Loss:
        """Compute the mean cross-entropy of the batch."""
        return Loss(F.cross_entropy(net(batch.x).logits, batch.y))
