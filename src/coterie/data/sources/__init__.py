"""Where data comes from: one file per data set, each with `read(root) -> Raw`."""
