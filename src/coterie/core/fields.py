"""Constrained types for hyper-parameters, so that bad values are rejected before a run."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

NonNegative = Annotated[float, Ge(0.0)]
Positive = Annotated[float, Gt(0.0)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
PositiveShare = Annotated[float, Gt(0.0), Le(1.0)]
Decay = Annotated[float, Ge(0.0), Lt(1.0)]
Count = Annotated[int, Ge(0)]
PositiveCount = Annotated[int, Ge(1)]
