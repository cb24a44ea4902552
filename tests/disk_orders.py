"""An objective whose clients let operations on files fail, or count them, as a file orders.

Any method can be trained with it. Workers import this file as `disk_orders`. Orders are the number
of an operation and a kind of fault, or `count`; operations count from the first batch on that a
process trains on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from coterie.core.batch import Batch
from coterie.kit import Loss, Network, Objective
from coterie.nets.build import Backbone
from coterie.objectives.supervised import Supervised
from faulty_disk import Fault, Operation, Wrap, wrap_operations

COUNT = "count"
_obeyed: list[str] = []  # orders that this process follows


def find_report(orders: Path) -> Path:
    """The file in which a process says what became of its orders."""
    return orders.with_suffix(".report")


def _count(report: Path) -> Wrap:
    def wrap(name: str, number: int, operation: Operation) -> Operation:
        report.write_text(str(number + 1))
        return operation

    return wrap


@final
@dataclass(frozen=True)
class Obeying(Objective):
    """Cross-entropy, as `supervised`; the first batch makes a process follow its orders."""

    labels = True
    orders: str = ""  # the file of orders, if it exists

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return Supervised().build(backbone, classes, projection)

    def loss(self, net: Network, batch: Batch) -> Loss:
        path = Path(self.orders)
        if self.orders not in _obeyed and path.is_file():
            _obeyed.append(self.orders)
            first, *rest = path.read_text().split()
            report = find_report(path)
            if first == COUNT:
                wrap_operations(_count(report))
            else:
                wrap_operations(Fault(int(first), *rest, log=str(report)))
        return Supervised().loss(net, batch)
