"""What uploads must look like: words become numbers, and a group without a form is found early."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch
from canned import (
    NO_DATA,
    SIZES,
    Canned,
    FixedOnClients,
    Listener,
    Toy,
    make_player,
    make_spec,
    model,
    position,
)

from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError
from coterie.core.schema import Rows
from coterie.core.settings import EvaluateSettings
from coterie.core.task import METHOD, Attempt, Reply, Task
from coterie.engine.cohort import Invited
from coterie.engine.evaluation import CONFUSION, Evaluation
from coterie.engine.spec import Parts
from coterie.kit import Array, Entry, Gather, Mean, Method, Rules, Stage, Sum, stock


@final
@dataclass(frozen=True)
class Declared(Method):
    """The toy method with any rules, in a first and a second stage."""

    objectives = None
    clusters: int = 5
    rate: float = 0.5
    rules: Any = field(default_factory=dict)
    later: Any = None

    nets = Toy.nets
    init = stock.start_from_net
    client_update = Toy.client_update
    server_update = stock.average
    model = stock.global_model

    words: ClassVar[dict[str, Any]] = {"code": (4, 8), "triangle": 3}

    def broadcast(self, server: Bundle, round: Any) -> Bundle:
        return Bundle(
            {"model": server["model"], **({"more": server["more"]} if round.step else {})}
        )

    def sizes(self, nets: Any, known: Any) -> dict[str, Any]:
        assert known == {"classes": 2, "width": 1, "projection": 1}
        return self.words

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        arrays = {"h": Array("float16", ("code",), "clusters", below="classes")}
        first = Stage("train", 1, uploads=self.rules, arrays=arrays)
        later = Stage("later", rounds, broadcast=self.send_more, uploads=self.later)
        return (first,) if self.later is None else (first, later)

    def send_more(self, server: Bundle, round: Any) -> Bundle:
        return Bundle({"more": server["more"]})


def make(folder: Path, rules: Rules, later: Rules | None = None) -> Parts:
    spec = make_spec(folder)
    return Parts(replace(spec, objects={"method": Declared(rules=rules, later=later)}))


def declare(*shape: int | str) -> Gather:
    return Gather(entries={"x": Entry("float32", shape)})


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        (("classes", "width"), (2, 1)),
        (("projection", 7), (1, 7)),
        (("clusters", "triangle"), (5, 3)),
        (("code", "classes"), (4, 8, 2)),
        ((), ()),
    ],
)
def test_words_become_numbers(
    shape: tuple[int | str, ...], sides: tuple[int, ...], tmp_path: Path
) -> None:
    parts = make(tmp_path, {"g": declare(*shape)})
    expected = parts.expect(METHOD, parts.stages(METHOD)[0], model(1.0))
    assert expected.groups == {"g": {"x": ("float32", sides)}}
    assert expected.schema(10).blobs == {"h": Rows("float16", (4, 8), 50)}
    assert expected.array_bounds["h"].below == 2


@pytest.mark.parametrize("word", ["rate", "depth"])
def test_a_word_that_is_no_number_is_an_error_before_the_run(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unknown side {word!r}; known: clusters, classes"):
        make(tmp_path, {"g": declare(word)}).check_uploads()


def test_groups_without_a_form_are_found_before_the_run(tmp_path: Path) -> None:
    make(tmp_path, {"model": Mean(), "g": declare(), "sums": Sum(like="model")}).check_uploads()
    with pytest.raises(ConfigError, match=r"'g' have no form: the broadcast has model; use Sum\("):
        make(tmp_path, {"g": Sum()}).check_uploads()
    with pytest.raises(ConfigError, match="must look like 'absent' of the broadcast"):
        make(tmp_path, {"g": Sum(like="absent")}).check_uploads()


def test_a_later_stage_may_need_a_later_state(tmp_path: Path) -> None:
    make(tmp_path, {"model": Mean()}, {"g": Sum(like="more")}).check_uploads()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Entry("complex64", ()), "'complex64' is none of the dtypes that travel"),
        (lambda: Array("bfloat16", ()), "'bfloat16' is none"),
        (lambda: Mean("model", {}), r"Mean\(like='model'\) has the form of that group"),
        (lambda: Sum(entries={"x": "float32"}), r"'x' as 'float32', not as Entry"),
        (lambda: Stage("s", 1, arrays={"x": Entry("int8")}), "the array 'x' .* not as Array"),
    ],
)
def test_wrong_declarations_fail_where_they_are_written(make: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


def test_tasks_say_what_their_uploads_must_look_like(tmp_path: Path) -> None:
    executor = Canned(lambda task: Reply(task.client, model(1.0), SIZES[task.client]))
    player = make_player(tmp_path, executor)

    stage = player.parts.stage(METHOD, "train")
    player.round(METHOD, stage, position(), model(0.0), Invited((1, 2)), Attempt())
    assert [task.expected.groups for task in executor.tasks if task.expected] == [
        {"model": {"backbone.scale": ("float32", (1,))}}
    ] * 2


def reply_with(matrix: torch.Tensor, **metrics: Any) -> Any:
    def answer(task: Task) -> Reply:
        wrong = task.client == 1
        sent = {"own": matrix if wrong else torch.ones(2, 2, dtype=torch.int64)}
        measured = {"own/score": 0.5, **({k.replace("_", "/"): v for k, v in metrics.items()})}
        up = Bundle({CONFUSION: sent})
        return Reply(task.client, up, 1, measured if wrong else {"own/score": 0.5})

    return answer


COUNTS = torch.ones(2, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply_with(torch.ones(3, 3, dtype=torch.int64)), "is int64 [3, 3], not int64 [2, 2]"),
        (reply_with(COUNTS.float()), "is float32 [2, 2], not int64 [2, 2]"),
        (reply_with(-COUNTS), "holds a negative count"),
        (reply_with(COUNTS, other_score=1.0), "'other/score', which it was not asked for"),
        (reply_with(COUNTS, own_loss="low"), "measured own/loss = 'low'"),
    ],
)
def test_what_clients_measured_is_screened(answer: Any, problem: str, tmp_path: Path) -> None:

    listener = Listener()
    player = make_player(tmp_path, Canned(answer), listener, evaluators={"own": FixedOnClients()})
    measured = Evaluation(EvaluateSettings(), NO_DATA).measure(
        player, position(), model(4.0), Attempt()
    )
    assert measured.metrics == {"score_0": 0.5, "score_2": 0.5}
    assert measured.confusion == [[2, 2], [2, 2]]
    assert any(problem in note and "client 1" in note for note in listener.notes)
