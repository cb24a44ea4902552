"""One file a backbone; the file name is its name, `build(shape, settings)` makes it."""
