"""Rules that divide the training set among clients: one file and one frozen dataclass per rule.

A rule extends `Skewed`, has `min_samples` and `deal(labels, classes, seed, groups=None) ->
{client: indices}` with clients numbered from 0; its fields are the keys of `[partition]`.
"""

from coterie.core.errors import ConfigError


def require_enough(samples: int, clients: int, min_samples: int) -> None:
    """Reject more clients, or larger shares, than there are samples for."""
    if clients > samples:
        raise ConfigError(
            f"partition.clients={clients} is more than the {samples} training samples; "
            f"use partition.clients={samples} or fewer"
        )
    if clients * min_samples > samples:
        raise ConfigError(
            f"partition.clients={clients} with partition.min_samples={min_samples} needs "
            f"{clients * min_samples} training samples and there are {samples}; use "
            f"partition.min_samples={samples // clients} or fewer, or fewer partition.clients"
        )
