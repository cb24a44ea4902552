"""`record.tensorboard = true`: the metrics of every round as TensorBoard scalars."""

import importlib.util
from pathlib import Path

from coterie.core.errors import ConfigError
from coterie.engine.record import Event, RoundEvent, StartEvent


def check_installed() -> None:
    """Raise before the run starts if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "record.tensorboard = true needs the package tensorboard: "
            "pip install 'coterie[tensorboard]'"
        )


class TensorBoard:
    """A recorder that writes `tensorboard/` in the run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"

    def __call__(self, event: Event) -> None:
        """Open the writer at the start, dropping uncommitted rounds, then add each round."""
        if isinstance(event, StartEvent):
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=event.first)
        elif isinstance(event, RoundEvent):
            sent = {"bytes_up": event.bytes_up, "bytes_down": event.bytes_down}
            for name, value in {**event.metrics, **sent}.items():
                self._writer.add_scalar(name, value, event.round)
            self._writer.flush()
