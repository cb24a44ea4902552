from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coterie.sinks.tensorboard import TensorBoard


@pytest.mark.usefixtures("calls")
def test_every_round_is_there_once_with_the_configuration(tracker: Any) -> None:
    tracker.run(TensorBoard(), 0, 2, "interrupted")
    tracker.run(TensorBoard(), 1, 3, "finished")  # only the first round was committed
    found = EventAccumulator(str(tracker.folder / "tensorboard"))
    found.Reload()
    rounds = [(event.step, event.value) for event in found.Scalars("accuracy")]
    assert rounds == [(0, 0.0), (1, 0.125), (2, 0.25), (3, 0.375)]
    assert {"train_loss", "bytes_up", "bytes_down", "seconds", "clients"} <= {
        *found.Tags()["scalars"]
    }
    (text,) = found.Tensors("configuration")
    assert b"method.mu = 1.5" in text.tensor_proto.string_val[0]


def test_a_resumed_run_that_was_not_tracked_before_gets_its_earlier_rounds(tracker: Any) -> None:
    tracker.run(TensorBoard(), 2, 3, "finished")
    found = EventAccumulator(str(tracker.folder / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("accuracy")] == [0, 1, 2, 3]
