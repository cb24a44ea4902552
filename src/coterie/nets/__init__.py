"""Networks: backbones that give h, and the heads on top of them."""
