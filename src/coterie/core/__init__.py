"""The words that everything speaks: bundles, tasks, seeds, errors."""
