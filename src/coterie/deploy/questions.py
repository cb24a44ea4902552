"""Questions to clients before the first round, each with a deadline.

A question has all that its answer needs, so a client that was killed and came back is asked again.
One that stays away, takes too long, or answers with something else is named with the reason.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from coterie.deploy.handshake import Terms
from coterie.deploy.link import Message, ServerLink

_LONGEST = 2000  # letters of a reason

_Answer = TypeVar("_Answer")


class Unanswered(Exception):
    """Some clients did not answer as they should; `reasons` says why, by name."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(", ".join(reasons))
        self.reasons = dict(reasons)


class Questions:
    """Asks clients, and waits for all of them."""

    def __init__(
        self, link: ServerLink, terms: Terms, seconds: float, grace: float, poll: float
    ) -> None:
        """Allow `seconds` for an answer, of which a client may be away for `grace`."""
        self._link, self._head = link, terms.to_plain()
        self._seconds, self._grace, self._poll = seconds, grace, poll

    def ask(
        self,
        kind: str,
        heads: Mapping[str, Mapping[str, Any]],
        read: Callable[[str, Mapping[str, Any]], _Answer],
    ) -> dict[str, _Answer]:
        """Ask clients by name, each with a head of its own; return what `read` made of answers.

        `read` raises `ValueError` for what is no answer.
        """
        start = time.monotonic()
        seen = dict.fromkeys(heads, start)  # when a client was last connected
        out: dict[str, str] = {}  # the questions that are not answered, by id
        answers: dict[str, _Answer] = {}
        reasons: dict[str, str] = {}
        while len(answers) + len(reasons) < len(heads):
            now, peers = time.monotonic(), self._link.peers()
            seen |= {name: now for name in heads if peers.get(name)}
            done = {*answers, *reasons, *out.values()}
            new = [name for name in heads if name not in done and peers.get(name)]
            questions = [Message(name, kind, {**self._head, **heads[name]}) for name in new]
            out |= dict(zip(self._link.send(questions) if new else [], new, strict=True))
            for message in self._link.receive(list(out)):
                name = out.pop(message.id)
                if message.error:
                    continue  # it is asked again when it is connected
                try:
                    if message.kind != kind:
                        reason = f"it answered {message.kind!r:.40}"
                        raise ValueError(message.head.get("reason", reason))
                    answers[name] = read(name, message.head)
                except ValueError as error:
                    reasons[name] = str(error)[:_LONGEST]
            for name in heads.keys() - answers.keys() - reasons.keys():
                if now - seen[name] > self._grace:
                    reasons[name] = f"no sign of life for {self._grace:g} s"
                elif now - start > self._seconds:
                    reasons[name] = f"no answer within {self._seconds:g} s"
            if len(answers) + len(reasons) < len(heads):
                self._link.wait(self._poll)
        if reasons:
            raise Unanswered(reasons)
        return {name: answers[name] for name in heads}
