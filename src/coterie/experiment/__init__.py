"""From a configuration to a finished run: read, prepare, run."""
