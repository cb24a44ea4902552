"""The executor over a Ray cluster; only `executor.kind = "ray"` imports Ray."""
