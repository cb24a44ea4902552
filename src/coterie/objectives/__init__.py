"""One file an objective; the file name is the objective's name."""
