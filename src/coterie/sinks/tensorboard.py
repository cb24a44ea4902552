"""TensorBoard: event files in `tensorboard/` of the run directory."""

import json
import time
from typing import Any, final

from coterie.engine.record import RoundEvent
from coterie.engine.sink import Sink, TrackedRun, list_values


@final
class TensorBoard(Sink):
    """Writes scalars by round; TensorBoard drops rounds that a resumed run repeats."""

    modules, extra = ("tensorboard",), "tensorboard"

    def start(self, run: TrackedRun) -> None:
        """Open a file, tell readers to forget what follows the last committed round."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.folder / "tensorboard"
        known = any(folder.glob("events.*"))
        self._writer, self._event = EventFileWriter(str(folder)), Event
        started = SessionLog(status=SessionLog.START)
        self._add(run.first, session_log=started)
        if not known:
            self._add(0, summary=_describe(run))
            for event in run.history:
                self.round(event)
        self._writer.flush()

    def round(self, event: RoundEvent) -> None:
        """Add every number as a scalar."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in list_values(event).items()
        ]
        self._add(event.round, summary=Summary(value=values))
        self._writer.flush()

    def end(self, status: str) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))


def _describe(run: TrackedRun) -> Any:
    """Write the configuration as a text for TensorBoard."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    text = "\n".join(f"    {k} = {json.dumps(v)}" for k, v in run.parameters().items())
    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    metadata = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag="configuration", metadata=metadata, tensor=tensor)])
