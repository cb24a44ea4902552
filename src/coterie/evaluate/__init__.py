"""One file an evaluator; the file name is what `evaluate.with` calls it."""
