"""Data sets by name: one file each, with `read(root) -> Raw` or `decode` for image files."""
