"""Backbones by name: one file each, with `build(shape, settings)`."""
