"""Finds out which of Flower's nodes is which center, asks them, and waits for their answers.

A node is identified by its key (`identity`). If keys are not bound to names, a node is known by the name it
gave. Every node answers a check before it takes part: at the start of the run, and again whenever one appears
that was not there before. Whatever is wrong with an answer affects only its own center. It results in a
reason, never in an exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmt.core.errors import FedmtError, listed
from fedmt.core.escaping import escaped
from fedmt.engines.flower import wire
from fedmt.engines.flower.arriving import arriving_by
from fedmt.engines.flower.identity import Identity, identified, unsigned
from fedmt.engines.flower.trail import Trail

log = logging.getLogger("flwr")

POLL = 0.2
"""Seconds between two checks for an answer."""

CHECK_TIMEOUT = 120.0
"""Seconds that a node that appears during a run may take for its check."""

REST = 10.0
"""Seconds to wait for the other centers once one does not fit, so that all problems are reported at once, and
for the rest of an answer to a check."""


@dataclass(frozen=True)
class Answer:
    """What a center said, or why there is nothing (`problem`, in printable characters). malformed: whether
    the reason is that it does not have fedmt's format."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    content: RecordDict | None = None
    problem: str = ""
    malformed: bool = False

    def tensors(self, name: str) -> wire.Weights:
        return {} if self.content is None else wire.tensors_of(self.content, name)


class Roll:
    """names: the centers that belong to the run. inspect: takes a center's name and its answer to the check,
        and returns what is wrong with it, or ''. tensors: what a node receives with its check, by kind.
    keys: the fingerprint of each center's key, by name; empty if any node may use any name.
    """

    def __init__(
        self,
        grid: Grid,
        names: Collection[str],
        run: str,
        inspect: Callable[[str, Mapping[str, Any]], str],
        tensors: Mapping[str, bytes] | None = None,
        keys: Mapping[str, str] | None = None,
        trail: Trail | None = None,
    ) -> None:
        self.grid, self.names, self.run, self._inspect = grid, sorted(names), run, inspect
        self._tensors = tensors or {}
        self.keys = keys or {}
        self.trail = trail or Trail(None)
        self.nodes: dict[str, int] = {}
        """By name, the node of each present center."""
        self._known: dict[int, Identity] = {}
        self._seen: set[int] = set()
        self._pending: dict[str, int] = {}
        self._strangers: list[str] = []
        self._silent: set[str] = set()
        """Centers whose node did not answer its last message. Another node may take their place."""
        self._claims: dict[int, str] = {}
        """Nodes that gave the name of a center that belongs to another node, if names are not bound
        to keys."""

    # -- who is here ------------------------------------------------------------------------------

    def call(self, facts: Mapping[str, Any], wait: float, at_least: int) -> None:
        """Waits for the centers before the first round: for all of them, and after `wait` seconds for
        `at_least` of them.

        A center that does not fit the config stops the run. Somebody made a mistake in one of the two files,
        and training without the center would be a different experiment from the requested one.
        """
        deadline = time.monotonic() + wait
        log.info("Waiting for %s.", listed(self.names, 20))
        misfits: dict[str, str] = {}
        while len(self.nodes) < len(self.names) and time.monotonic() < deadline:
            self._ask_newcomers(facts)
            found = {name: problem for name, problem in self._newcomers() if problem}
            if found and not misfits:
                deadline = min(deadline, time.monotonic() + REST)
            misfits |= found
            if misfits and not self._pending:
                break
            time.sleep(POLL)
        if misfits:
            raise FedmtError(not_begun(misfits))
        missing = [name for name in self.names if name not in self.nodes]
        if len(self.nodes) < at_least:
            others = f" Nodes that did not fit: {'; '.join(self._strangers)}." if self._strangers else ""
            raise FedmtError(
                f"After {wait:.0f} s, {listed(missing, 20)} had not answered the check. {len(self.nodes)} of "
                f"{len(self.names)} centers are present, and deployment.min_centers is {at_least}.{others}"
            )
        if missing:
            log.warning("Continuing without %s.", listed(missing, 20))

    def update(self, facts: Mapping[str, Any]) -> None:
        """Before a round, centers that came back are accepted if they pass their check.

        A center that did not answer in time can still answer before a later round, but nobody waits for it.
        """
        late = set(self._pending)
        self._ask_newcomers(facts)
        deadline = time.monotonic() + CHECK_TIMEOUT
        while True:
            for name, problem in self._newcomers():
                if problem:
                    log.error("Center '%s' does not take part: %s.", name, problem)
            if self._pending.keys() <= late or time.monotonic() > deadline:
                break
            time.sleep(POLL)

    def check_again(self, name: str) -> None:
        """Before the next round, a center is checked as if it were new, and receives everything again."""
        self._seen.discard(self.nodes.get(name, -1))

    def _ask_newcomers(self, facts: Mapping[str, Any]) -> None:
        self._known = identified(self.grid.get_nodes(), self.keys)
        online = set(self._known)
        for name, node in list(self.nodes.items()):
            if node not in online:
                log.warning("Center '%s' is gone.", name)
                self.trail.write("gone", center=name, node=node)
                del self.nodes[name]
        self._seen &= online  # a node that left and came back counts as new
        self._pending = {sent: node for sent, node in self._pending.items() if node in online}
        for node, name in list(self._claims.items()):
            if name not in self.nodes or name in self._silent:
                del self._claims[node]
                self._seen.discard(node)
        for node in sorted(online - self._seen):
            self._seen.add(node)
            if self._known[node].refused:
                self._stranger(node, self._known[node].refused)
                continue
            content = wire.message({**facts, "run": self.run, "round": 0}, **self._tensors)
            sent = self._push("query.check", node, content)
            if sent is not None:
                self._pending[sent] = node
                self.trail.asked("query.check", 0, self._known[node].name, node, sent, content)

    def _newcomers(self) -> Iterator[tuple[str, str]]:
        """The nodes whose answer to the check has arrived, and what is wrong with them."""
        for identifier, node in list(self._pending.items()):
            answer = self._pull(identifier, node, time.monotonic() + REST)
            if answer is None:
                continue
            del self._pending[identifier]
            own = self._known[node].name
            name = answer.facts.get("center")
            said = escaped(name, 80)
            if own is not None and answer.malformed:
                self._stranger(
                    node, f"the answer of center '{own}' to the check is malformed: {answer.problem}"
                )
                continue
            if own is not None:
                problem = answer.problem
                if not problem and name != own:
                    problem = f"its node answers for center '{said}', which has another key"
                name = own
            elif answer.problem or not isinstance(name, str):
                self._stranger(node, answer.problem or str(answer.facts.get("problem") or "it gives no name"))
                continue
            elif name not in self.names:
                self._stranger(node, f"it calls itself '{said}', which the federation does not name")
                continue
            else:
                problem = ""
            try:
                problem = (
                    problem or str(answer.facts.get("problem") or "") or self._inspect(name, answer.facts)
                )
            except Exception as error:  # the answer does not have fedmt's format
                reason = f"the answer of center '{name}' to the check is malformed ({type(error).__name__})"
                self._stranger(node, reason)
                continue
            if not problem and self._taken(name, node):
                continue
            self._enter(name, node, escaped(problem))
            yield name, escaped(problem)

    def _taken(self, name: str, node: int) -> bool:
        """Whether another node that is online and answers is already this center."""
        other = self.nodes.get(name)
        if other is None or other == node or name in self._silent:
            return False
        self._claims[node] = name
        self._stranger(node, f"it calls itself '{name}', which is node {other}")
        return True

    def _enter(self, name: str, node: int, problem: str) -> None:
        about = {"center": name, "node": node, "key": self._known[node].fingerprint}
        if problem:
            self.trail.write("refused", **about, why=problem)
            return
        if self.nodes.get(name, node) != node:
            log.warning("Center '%s' is now node %s.", name, node)
        self.nodes[name] = node
        self._silent.discard(name)
        log.info("Center '%s' is present.", name)
        self.trail.write("connected", **about)

    def _stranger(self, node: int, why: str) -> None:
        about = self._known[node]
        what = f"node {node}: {escaped(why)}"
        log.warning("Left aside, %s.", what)
        self.trail.write("refused", center=about.name, node=node, key=about.fingerprint, why=escaped(why))
        self._strangers.append(what)

    # -- asking -----------------------------------------------------------------------------------

    def ask(
        self, kind: str, round: int, contents: Mapping[str, RecordDict], timeout: float
    ) -> Iterator[tuple[str, Answer]]:
        """Sends each center its message, and yields the answers in the order of the names.

        One answer is in memory at a time. The others wait in the SuperLink for their turn.
        """
        deadline = time.monotonic() + timeout
        sent: dict[str, str | None] = {}
        for name in sorted(contents):
            if name in self.nodes:
                node, content = self.nodes[name], contents[name]
                # An answer that arrives in time must survive the wait for the names before it.
                sent[name] = self._push(kind, node, content, 2 * timeout + 60, str(round))
                self.trail.asked(kind, round, name, node, sent[name], content)
        # The messages are in the SuperLink now and need not stay in memory here.
        return self._answers(kind, sorted(contents), sent, round, deadline, timeout)

    def _answers(
        self,
        kind: str,
        names: list[str],
        sent: Mapping[str, str | None],
        round: int,
        deadline: float,
        timeout: float,
    ) -> Iterator[tuple[str, Answer]]:
        for name in names:
            if name not in self.nodes:
                yield name, Answer(problem="it is not connected")
            elif (identifier := sent[name]) is None:
                yield name, Answer(problem="its message could not be sent")
            else:
                answer = self._wait(name, identifier, round, deadline, timeout)
                if answer.content is not None:
                    self.trail.received(kind, round, name, self.nodes[name], identifier, answer.content)
                yield name, answer

    def _wait(self, name: str, identifier: str, round: int, deadline: float, timeout: float) -> Answer:
        while True:
            late = time.monotonic() > deadline  # read before the last check
            answer = self._pull(identifier, self.nodes[name], deadline)
            if answer is not None:
                self._silent.discard(name)
                if answer.problem:
                    return answer
                facts = answer.facts
                if facts.get("center") is None and facts.get("problem"):  # it cannot read its own file
                    return Answer(problem=escaped(facts["problem"]))
                if (facts.get("run"), facts.get("round"), facts.get("center")) != (self.run, round, name):
                    said = [escaped(facts.get(key), 80) for key in ("run", "round")]
                    center = escaped(repr(facts.get("center")), 80)
                    return Answer(problem=f"it answered for run {said[0]}, round {said[1]}, center {center}")
                if problem := facts.get("problem"):
                    return Answer(facts, problem=escaped(problem))
                return answer
            if late:
                self._silent.add(name)
                return Answer(problem=f"no answer within {timeout:.0f} s")
            time.sleep(POLL)

    def _push(
        self, kind: str, node: int, content: RecordDict, ttl: float | None = None, group: str = ""
    ) -> str | None:
        message = Message(content, node, kind, ttl=ttl, group_id=group)
        return next(iter(self.grid.push_messages([message])), None) or None

    def _pull(self, identifier: str, node: int, deadline: float) -> Answer | None:
        """The answer to a message, once it has begun to arrive. Each is read separately, so that a broken one
        harms no other."""
        try:
            with arriving_by(deadline):
                messages = list(self.grid.pull_messages([identifier]))
        except httpx.HTTPError:  # this is a problem of the SuperLink, not of an answer
            raise
        except Exception as error:
            return Answer(problem=f"its answer cannot be read ({type(error).__name__})", malformed=True)
        return self._read(messages[0], identifier, node) if messages else None

    def _read(self, message: Message, identifier: str, node: int) -> Answer:
        if message.has_error():
            return Answer(problem=escaped(f"Flower reports: {message.error.reason}"))
        try:
            content = message.content
            facts = wire.facts_of(content)
            wrong = ""
            if self.keys:
                key = self._known[node].key if node in self._known else None
                wrong = "it has no key" if key is None else unsigned(content, facts, identifier, key)
            if wrong and facts.get("problem"):
                wrong += f"; unsigned, it says: {facts['problem']}"
        except FedmtError as error:
            return Answer(problem=escaped(error), malformed=True)
        except Exception as error:
            return Answer(problem=f"its answer cannot be read ({type(error).__name__})", malformed=True)
        return Answer(problem=escaped(wrong)) if wrong else Answer(facts, content)


def not_begun(misfits: Mapping[str, str]) -> str:
    """The error that lists the centers that do not fit the federation's config, and what to do."""
    lines = [f"Center '{name}': {misfits[name]}." for name in sorted(misfits)]
    lines.append(
        "The run has not started. Correct this at the center or in the federation's config, whichever is "
        "wrong, then start the run again with the same command. To train without a center, remove it from "
        "the config."
    )
    return "\n".join(lines)
