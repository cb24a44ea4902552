"""The vocabulary that all other rooms share: bundles, tasks, seeds, settings, errors."""
