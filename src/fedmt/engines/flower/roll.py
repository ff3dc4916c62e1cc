"""Which of Flower's nodes is which center; asking them, and waiting for their answers.

A node is known by the name it gave in the check that every node answers before it takes part: at the start
of the run, and again whenever one appears that was not there before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmt.core.errors import FedmtError, listed
from fedmt.engines.flower import wire

log = logging.getLogger("flwr")

POLL = 0.2
"""Seconds between two looks for an answer."""

CHECK_TIMEOUT = 120.0
"""Seconds that a node which appears during a run may take for its check."""


@dataclass(frozen=True)
class Answer:
    """What a center said, or why there is nothing (`problem`)."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    content: RecordDict | None = None
    problem: str = ""

    def tensors(self, name: str) -> wire.Weights:
        return {} if self.content is None else wire.tensors_of(self.content, name)


class Roll:
    """names: the centers that belong to the run. inspect: from a center's name and its answer to the check to
    what is wrong with it, '' if nothing. tensors: what a node receives with its check, by what they are."""

    def __init__(
        self,
        grid: Grid,
        names: Collection[str],
        run: str,
        inspect: Callable[[str, Mapping[str, Any]], str],
        tensors: Mapping[str, bytes] | None = None,
    ) -> None:
        self.grid, self.names, self.run, self._inspect = grid, sorted(names), run, inspect
        self._tensors = tensors or {}
        self.nodes: dict[str, int] = {}
        """By name, the node of each center that is here."""
        self._seen: set[int] = set()
        self._pending: dict[str, int] = {}
        self._strangers: list[str] = []

    # -- who is here ------------------------------------------------------------------------------

    def call(self, facts: Mapping[str, Any], wait: float, at_least: int) -> None:
        """Before the first round: waits for all centers, and after `wait` seconds for `at_least` of them.

        A center whose check fails stops the run, with its name and the reason.
        """
        deadline = time.monotonic() + wait
        log.info("Waiting for %s.", listed(self.names, 20))
        while len(self.nodes) < len(self.names) and time.monotonic() < deadline:
            self._ask_newcomers(facts)
            for name, problem in self._newcomers():
                if problem:
                    raise FedmtError(f"Center '{name}': {problem}.")
            time.sleep(POLL)
        missing = [name for name in self.names if name not in self.nodes]
        if len(self.nodes) < at_least:
            others = f" Nodes that did not fit: {'; '.join(self._strangers)}." if self._strangers else ""
            raise FedmtError(
                f"After {wait:.0f} s {listed(missing, 20)} had not answered the check; {len(self.nodes)} of "
                f"{len(self.names)} centers are here, and deployment.min_centers is {at_least}.{others}"
            )
        if missing:
            log.warning("Going on without %s.", listed(missing, 20))

    def update(self, facts: Mapping[str, Any]) -> None:
        """Before a round: centers that came back are welcomed, if their check is right.

        Who did not answer in time is still heard before a later round, but no longer waited for.
        """
        late = set(self._pending)
        online = self._ask_newcomers(facts)
        deadline = time.monotonic() + CHECK_TIMEOUT
        while True:
            for name, problem in self._newcomers():
                if problem:
                    log.error("Center '%s' takes no part: %s.", name, problem)
            if self._pending.keys() <= late or time.monotonic() > deadline:
                break
            time.sleep(POLL)
        for name, node in list(self.nodes.items()):
            if node not in online:
                log.warning("Center '%s' is gone.", name)
                del self.nodes[name]

    def check_again(self, name: str) -> None:
        """Before the next round, a center is checked as if it were new, with what comes with it."""
        self._seen.discard(self.nodes.get(name, -1))

    def _ask_newcomers(self, facts: Mapping[str, Any]) -> set[int]:
        online = set(self.grid.get_node_ids())
        self._seen &= online  # a node that went away and came back is new
        self._pending = {sent: node for sent, node in self._pending.items() if node in online}
        for node in sorted(online - self._seen):
            self._seen.add(node)
            content = wire.message({**facts, "run": self.run, "round": 0}, **self._tensors)
            sent = self._push("query.check", node, content)
            if sent is not None:
                self._pending[sent] = node
        return online

    def _newcomers(self) -> Iterator[tuple[str, str]]:
        """Those whose answer to the check has come, and what is wrong with them."""
        for message in self.grid.pull_messages(list(self._pending)) if self._pending else ():
            node = self._pending.pop(message.metadata.reply_to_message_id)
            answer = self._read(message)
            name = answer.facts.get("center")
            if answer.problem or not isinstance(name, str):
                self._stranger(f"node {node}: {answer.problem or 'it gives no name'}")
            elif name not in self.names:
                self._stranger(f"node {node} calls itself '{name}', which the federation does not name")
            elif problem := str(answer.facts.get("problem") or "") or self._inspect(name, answer.facts):
                yield name, problem
            else:
                if name in self.nodes:
                    log.warning("Center '%s' is now node %s.", name, node)
                self.nodes[name] = node
                log.info("Center '%s' is here.", name)
                yield name, ""

    def _stranger(self, what: str) -> None:
        log.warning("Left aside, %s.", what)
        self._strangers.append(what)

    # -- asking -----------------------------------------------------------------------------------

    def ask(
        self, kind: str, round: int, contents: Mapping[str, RecordDict], timeout: float
    ) -> Iterator[tuple[str, Answer]]:
        """Sends each center its message, and yields the answers in the order of the names.

        One answer is in memory at a time: the others wait in the SuperLink for their turn.
        """
        deadline = time.monotonic() + timeout
        sent: dict[str, str | None] = {}
        for name in sorted(contents):
            if name in self.nodes:
                # An answer that is here in time must outlast the wait for the names before it.
                sent[name] = self._push(kind, self.nodes[name], contents[name], 2 * timeout + 60, str(round))
        # The messages are in the SuperLink now, and need not stay in memory here.
        return self._answers(sorted(contents), sent, round, deadline, timeout)

    def _answers(
        self, names: list[str], sent: Mapping[str, str | None], round: int, deadline: float, timeout: float
    ) -> Iterator[tuple[str, Answer]]:
        for name in names:
            if name not in self.nodes:
                yield name, Answer(problem="it is not connected")
            elif (identifier := sent[name]) is None:
                yield name, Answer(problem="its message could not be sent")
            else:
                yield name, self._wait(name, identifier, round, deadline, timeout)

    def _wait(self, name: str, identifier: str, round: int, deadline: float, timeout: float) -> Answer:
        while True:
            late = time.monotonic() > deadline  # read before the last look
            for message in self.grid.pull_messages([identifier]):
                answer = self._read(message)
                if answer.problem:
                    return answer
                facts = answer.facts
                if (facts.get("run"), facts.get("round"), facts.get("center")) != (self.run, round, name):
                    return Answer(
                        problem=f"it answered for run {facts.get('run')}, round {facts.get('round')}, center "
                        f"{facts.get('center')!r}"
                    )
                if problem := facts.get("problem"):
                    return Answer(facts, problem=str(problem))
                return answer
            if late:
                return Answer(problem=f"no answer within {timeout:.0f} s")
            time.sleep(POLL)

    def _push(
        self, kind: str, node: int, content: RecordDict, ttl: float | None = None, group: str = ""
    ) -> str | None:
        message = Message(content, node, kind, ttl=ttl, group_id=group)
        return next(iter(self.grid.push_messages([message])), None) or None

    def _read(self, message: Message) -> Answer:
        if message.has_error():
            return Answer(problem=f"Flower reports: {message.error.reason}")
        try:
            return Answer(wire.facts_of(message.content), message.content)
        except FedmtError as error:
            return Answer(problem=str(error))
