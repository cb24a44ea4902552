"""Constrained types for hyper-parameters, so that bad values are rejected before a run.

Every number has an upper bound. It is far above what anybody uses, and low enough that no run is
stuck, or out of memory, before its first round: a larger one is a slip of the finger.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

MOST = 10**9  # of anything that is counted, and of numbers that have no other bound
MOST_ROUNDS = 100_000  # they are laid out before the first one
WIDEST = 65_536  # entries of a vector, or rows of a table, that the memory must hold

NonNegative = Annotated[float, Ge(0.0), Le(MOST)]
Positive = Annotated[float, Gt(0.0), Le(MOST)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
PositiveShare = Annotated[float, Gt(0.0), Le(1.0)]
Decay = Annotated[float, Ge(0.0), Lt(1.0)]
Count = Annotated[int, Ge(0), Le(MOST)]
PositiveCount = Annotated[int, Ge(1), Le(MOST)]
BatchSize = Annotated[int, Ge(2), Le(MOST)]
Rounds = Annotated[int, Ge(1), Le(MOST_ROUNDS)]
Width = Annotated[int, Ge(1), Le(WIDEST)]
OptionalWidth = Annotated[int, Ge(0), Le(WIDEST)]  # 0 has a meaning of its own
Depth = Annotated[int, Ge(1), Le(100)]  # layers, one behind the other
Side = Annotated[int, Ge(0), Le(4096)]  # pixels; 0: as it is
Seed = Annotated[int, Ge(0), Lt(2**53)]  # what every format of numbers keeps exactly
