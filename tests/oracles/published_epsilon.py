"""Values of epsilon that Opacus publishes in its tests, and what its accountants are beside ours.

The RDP accountant minimises over the orders that we use. The PRV accountant returns an upper bound:
epsilon at delta less a thousandth, plus 0.01, both margins for its own rounding. Its published
value is of 2,249 steps (90 // 0.04), the one of RDP of 2,250 (90 / 0.04).
"""

from coterie.kit.accounting import epsilon

NOISE, RATE, DELTA = 1.5, 0.04, 1e-5
RDP, PRV = 7.32911117143, 6.777395712150674
TOLERANCE = 1e-6


def prv(steps: int = 2249) -> float:
    """Add the margins of the PRV accountant to the distribution of the privacy loss."""
    return epsilon(NOISE, RATE, steps, DELTA * (1.0 - 1e-3), "pld") + 0.01


def find_problem() -> str:
    """Say which constant is not met, or return ""."""
    for name, ours, theirs in (
        ("RDP", epsilon(NOISE, RATE, 2250, DELTA, "rdp"), RDP),
        ("PRV", prv(), PRV),
    ):
        if abs(ours - theirs) > TOLERANCE:
            return f"{name} gives {ours!r}, published is {theirs!r}"
    return ""
