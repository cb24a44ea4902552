"""Methods of our own. Workers import this package, so it is not the main script."""
