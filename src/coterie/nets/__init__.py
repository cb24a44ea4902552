"""Networks: backbones that compute the representation h, and the heads on top of them."""
