"""What a client's code may do wrong: a reply with the reason, never the end of a run."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from canned import WEIGHT, FixedOnClients, Toy, make_spec, model, position

from coterie.core.bundle import Bundle
from coterie.core.task import Failure, Reply, Task
from coterie.data import datasets
from coterie.data.datasets import Raw
from coterie.data.partition import Partition
from coterie.engine.site import Site

SHARES = Partition({0: np.arange(6), 1: np.arange(6, 12)}, {0: np.arange(3)})
Answer = Callable[[], tuple[Bundle, Bundle | None]]
Ask = Callable[[Answer], Reply]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    x, y = np.ones((12, 2), np.float32), np.arange(12) % 2
    return str(datasets.store("toy", Raw(x, y, x[:3], y[:3]), tmp_path_factory.mktemp("c")).path)


@pytest.fixture
def ask(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Ask a site for an update, with this instead of the client's part."""

    def run(answer: Answer) -> Reply:
        monkeypatch.setattr(Toy, "client_update", lambda self, *arguments: answer())
        site = Site(make_spec(tmp_path, data=data), SHARES)
        return site.run(Task("update", 0, position(), model(1.0)))

    return run


def leave(error: BaseException) -> Answer:
    def answer() -> tuple[Bundle, None]:
        raise error

    return answer


def sent(**parts: Any) -> Answer:
    return lambda: (Bundle(**parts), None)


def failure(reply: Reply) -> Failure:
    assert reply.error is not None
    return reply.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit: "),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (KeyboardInterrupt("mine"), "KeyboardInterrupt: mine"),
    ],
)
def test_exits_of_a_clients_own_code_fail_that_client(
    error: BaseException, reason: str, ask: Ask
) -> None:
    found = failure(ask(leave(error)))
    assert (found.kind, found.reason) == ("failed", reason)
    assert "Traceback" in found.trace


def test_a_ctrl_c_of_the_user_ends_the_task(ask: Ask) -> None:
    def interrupted() -> tuple[Bundle, None]:
        os.kill(os.getpid(), signal.SIGINT)
        return model(1.0), None

    with pytest.raises(KeyboardInterrupt):
        ask(interrupted)


def test_a_ctrl_c_that_a_clients_code_catches_still_ends_the_task(ask: Ask) -> None:
    def stubborn() -> tuple[Bundle, None]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([signal.SIGUSR2], 1)  # the signal is handled here at the latest
        except KeyboardInterrupt:
            pass
        return model(1.0), None

    with pytest.raises(KeyboardInterrupt):
        ask(stubborn)


def test_outside_of_the_main_thread_every_interrupt_is_the_clients(ask: Ask) -> None:
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(ask(leave(KeyboardInterrupt()))))
    thread.start()
    thread.join()
    assert failure(replies[0]).kind == "failed"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: (Bundle(scalars={"x": b"a"}), None), "TypeError: the scalar 'x' is bytes"),
        (lambda: (Bundle(scalars={"x": 1 << 9999}), None), "'x' is an integer of 10000 bits"),
        (
            sent(tensors={"model": {WEIGHT: torch.ones(1) * 1j}}),
            f"CodecError: model/{WEIGHT} is complex64",
        ),
        (sent(tensors={"a\x1fb": {"x": torch.ones(1)}}), "U+001F"),
    ],
)
def test_an_upload_that_cannot_be_sent_fails_under_every_executor(
    answer: Answer, reason: str, ask: Ask
) -> None:
    found = failure(ask(answer))
    assert found.kind == "failed" and reason in found.reason


def test_numbers_of_numpy_are_sent_as_plain_ones(ask: Ask) -> None:
    reply = ask(lambda: (model(1.0).replace(), None))
    assert reply.error is None
    reply = ask(sent(tensors=model(1.0).tensors, scalars={"x": np.float32(0.5)}))
    assert reply.up.scalars == {"x": 0.5} and type(reply.up.scalars["x"]) is float


@pytest.mark.parametrize("value", [np.float32(0.5), torch.tensor(0.5), 1])
def test_metrics_of_evaluators_are_plain_floats(value: Any, data: str, tmp_path: Path) -> None:
    evaluators = {"fixed": FixedOnClients(value=value)}
    site = Site(make_spec(tmp_path, data=data, evaluators=evaluators), SHARES)
    down = Bundle({"evaluated": {WEIGHT: torch.tensor([2.0])}})
    reply = site.run(Task("evaluate", 0, position(), down))
    assert reply.error is None
    assert all(type(metric) is float for metric in reply.metrics.values()) and reply.metrics


def test_a_metric_that_is_no_number_fails_by_name(data: str, tmp_path: Path) -> None:
    evaluators = {"fixed": FixedOnClients(value=None)}  # type: ignore[arg-type]
    site = Site(make_spec(tmp_path, data=data, evaluators=evaluators), SHARES)
    down = Bundle({"evaluated": {WEIGHT: torch.tensor([2.0])}})
    reply = site.run(Task("evaluate", 0, position(), down))
    assert "is NoneType, not a number" in failure(reply).reason


def test_a_long_reason_is_cut(ask: Ask) -> None:
    found = failure(ask(leave(ValueError("x" * 10**6))))
    assert found.reason.startswith("ValueError: xxx") and len(found.reason) == 2000
    assert len(found.trace) <= 50_000
