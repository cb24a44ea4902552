"""Executors: they run tasks without knowing which method the tasks belong to."""
