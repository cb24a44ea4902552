"""The layer that divides vectors by their length; the kernels of whole networks know it."""

from torch import Tensor, nn
from torch.nn import functional as F


class UnitLength(nn.Module):
    """z / max(|z|, 1e-12), vector by vector; it has no weights."""

    def forward(self, z: Tensor) -> Tensor:
        """(n, width) -> (n, width), rows of length 1; a row of zeros stays one."""
        return F.normalize(z, dim=-1)
