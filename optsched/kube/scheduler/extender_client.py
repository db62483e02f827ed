"""Call extenders over HTTP, within the time budget of a session.

Calls run in separate threads, so a name server or service that does not respond delays a session by
at most the time budget for calls.
"""

from __future__ import annotations

import json
import logging
import math
import ssl
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from optsched.cluster.decisions import Allocate, Evict
from optsched.formats.extender_protocol import (
    node_info,
    predicate_body,
    read_refusals,
    read_reply,
    request_body,
    session_body,
    task_info,
)
from optsched.plugins.custom.extender import Extender, Question, Reply, Service, Verb
from optsched.units import format_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.formats.extender_protocol import Body
    from optsched.policy.policy import Policy
    from optsched.session.ports import Clock

MAX_BYTES: Final = 10 * 2**20
"""Maximum size of an extender's response in bytes, as in Volcano."""

MAX_CONCURRENT: Final = 8
"""Maximum number of concurrent calls to extenders."""

REMEMBERED_S: Final = 30.0
"""Seconds for which a slow extender's answer about a node is reused."""

MAX_REMEMBERED: Final = 200_000

SPENT: Final = "the session's time for extender calls is used up"

log = logging.getLogger(__name__)


class NoAnswer(Exception):
    """Raised if an extender gives no usable answer; the message gives the reason."""


class ExtenderClient:
    """Calls extenders in threads, and keeps connections to them open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT, "extender")
        self._idle: dict[str, list[HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._service = Service()
        self.answers = AnswerCache(clock)
        self._is_closed = False

    def open_session(self, snapshot: Snapshot, policy: Policy) -> ExtenderSession | None:
        """Start an extender session; return None if the policy has no extender."""
        active = policy.rules.find_rule(Extender.name)
        if active is None or not isinstance(active.rule, Extender) or not active.rule.paths:
            return None
        if active.rule.service != self._service:
            self._service, self.answers = active.rule.service, AnswerCache(self._clock)
        budget_s = policy.budgets.period_ms / 1000
        session = ExtenderSession(self, active.rule, snapshot, self._clock.monotonic() + budget_s)
        session.open()
        return session

    def close(self) -> None:
        """Close all connections to extenders, and reject further calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_closed = True
            idle = [each for all_ in self._idle.values() for each in all_]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def left_s(self, deadline_s: float) -> float:
        """Return the seconds until a deadline; negative after the deadline."""
        return deadline_s - self._clock.monotonic()

    def start(self, url: str, body: Body, timeout_s: float) -> Future[bytes]:
        """Start a call in a thread; return a future of the response body."""
        return self._pool.submit(self._post, url, json.dumps(body).encode(), timeout_s)

    def _post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        until_s = self._clock.monotonic() + timeout_s
        with self._lock:
            idle = self._idle.get(urlsplit(url).netloc)
            kept = idle.pop() if idle else None
        try:
            if kept is not None:
                try:
                    return self._exchange(kept, url, body, until_s)
                except TimeoutError:
                    raise
                except (OSError, HTTPException):
                    log.debug("an idle connection to %s was closed", url)
            parts = urlsplit(url)
            connection = HTTPConnection(parts.hostname or "", parts.port)
            if parts.scheme == "https":
                tls = ssl.create_default_context()
                connection = HTTPSConnection(parts.hostname or "", parts.port, context=tls)
            return self._exchange(connection, url, body, until_s)
        except TimeoutError as e:
            raise NoAnswer("did not answer in time") from e
        except (OSError, HTTPException) as e:
            raise NoAnswer(f"could not be reached: {str(e) or type(e).__name__}") from e

    def _exchange(self, connection: HTTPConnection, url: str, body: bytes, until_s: float) -> bytes:
        connection.timeout = max(self.left_s(until_s), 0.001)
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            connection.request("POST", urlsplit(url).path or "/", body, headers)
            found = bytearray()
            with connection.getresponse() as answer:
                if answer.status != 200:
                    raise NoAnswer(f"answered {answer.status} {answer.reason}".rstrip())
                while chunk := answer.read1(2**16):
                    found += chunk
                    if len(found) > MAX_BYTES:
                        raise NoAnswer("answered more than 10 MiB")
                    if self.left_s(until_s) <= 0:
                        raise TimeoutError
        except BaseException:
            connection.close()
            raise
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._idle.setdefault(urlsplit(url).netloc, []).append(connection)
        if is_closed:
            connection.close()
        return bytes(found)


class AnswerCache:
    """The nodes that a slow extender recently accepted or rejected, for each task class.

    If a session ran out of time, the next session reuses its answers and requests answers only
    about the remaining nodes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answers: dict[tuple[TaskShape, str], tuple[Node, str, float]] = {}
        self._overdue_s = -math.inf

    def recall(self, shape: TaskShape, nodes: Sequence[Node]) -> dict[str, str]:
        """Return recent answers about unchanged nodes, if a session recently ran out of time."""
        since_s = self._clock.monotonic() - REMEMBERED_S
        if self._overdue_s < since_s:
            return {}
        found = ((node, self._answers.get((shape, node.name))) for node in nodes)
        return {
            node.name: cached[1]
            for node, cached in found
            if cached is not None and cached[2] >= since_s and cached[0] == node
        }

    def remember(
        self,
        shape: TaskShape,
        nodes: Sequence[Node],
        answers: Mapping[str, str],
        *,
        is_overdue: bool,
    ) -> None:
        """Store answers about nodes for tasks with the same requests and constraints (`shape`).

        `is_overdue` is true if the session ran out of time before the extender judged all nodes.
        """
        now_s = self._clock.monotonic()
        if is_overdue:
            self._overdue_s = now_s
        if len(self._answers) > MAX_REMEMBERED:
            self._answers.clear()
        for node in nodes:
            if node.name in answers:
                self._answers[shape, node.name] = (node, answers[node.name], now_s)


class ExtenderSession:
    """Calls the extender during one session; implements `plugins.custom.extender.Outside`."""

    def __init__(
        self, extenders: ExtenderClient, rule: Extender, snapshot: Snapshot, deadline_s: float
    ) -> None:
        self._extenders = extenders
        self._rule = rule
        self._paths = dict(rule.paths)
        self._snapshot = snapshot
        self._deadline_s = deadline_s
        self._answers_for_all = True
        self._open_failure = ""

    # --- beginning and end -----------------------------------------------------------------------

    def open(self) -> None:
        """Notify the extender that a session starts.

        If the notification fails, all later calls of the session fail too, unless the extender is
        ignorable.
        """
        if Verb.SESSION_OPEN not in self._paths:
            return
        try:
            self._wait([self._start(Verb.SESSION_OPEN, session_body(self._snapshot))])
        except NoAnswer as e:
            log.warning("the extender was not notified of the session: %s", e)
            self._open_failure = str(e)

    def closed(self, plan: Plan | None) -> None:
        """Notify the extender that the session ends, and send the session's plan, if any."""
        task_by_key = {t.key: t for g in self._snapshot.gangs for t in g.tasks}
        found = [
            (Verb.ALLOCATE if isinstance(action, Allocate) else Verb.DEALLOCATE, action.task)
            for action in (() if plan is None else plan.actions)
            if isinstance(action, Allocate | Evict)
        ]
        calls = [
            (verb, {"task": task_info(task_by_key[key], self._snapshot)})
            for verb, key in found
            if verb in self._paths and self._rule.manages(task_by_key[key].shape.request)
        ]
        ends: list[tuple[Verb, Body]] = [(Verb.SESSION_CLOSE, {})]
        try:
            self._wait([self._start(verb, body) for verb, body in calls])
            self._wait([self._start(verb, body) for verb, body in ends if verb in self._paths])
        except NoAnswer as e:
            log.warning("the extender was not notified of the plan: %s", e)

    # --- questions -------------------------------------------------------------------------------

    def send_question(self, question: Question) -> Reply:
        """See `Outside`."""
        if self._open_failure and not self._rule.ignorable:
            return Reply(failure=f"{self._rule.service.url} {self._open_failure}")
        try:
            if question.verb is Verb.PREDICATE:
                assert question.task is not None  # noqa: S101  for the type checker
                cache, shape = self._extenders.answers, question.task.shape
                cached = cache.recall(shape, question.nodes)
                nodes = [node for node in question.nodes if node.name not in cached]
                answers, failed = self._request_refusals(
                    task_info(question.task, self._snapshot), nodes
                )
                is_overdue = SPENT in " ".join(failed.values())
                cache.remember(shape, nodes, answers, is_overdue=is_overdue)
                refused = {name: why for name, why in {**cached, **answers}.items() if why}
                return Reply({"refused": refused, "failed": failed})
            body = request_body(question, self._snapshot)
            (raw,) = self._wait([self._start(question.verb, body)])
            return Reply(read_reply(question.verb, raw))
        except (NoAnswer, ValueError) as e:
            return Reply(failure=f"{self._rule.service.url} {e}")

    def _request_refusals(
        self, task: Body, nodes: Sequence[Node]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return rejections (empty for accepted nodes) and failures of calls, both keyed by node.

        If the extender supports calls about several nodes, one call covers all nodes. An extender
        that does not support such calls gets one call for each node, and the calls run
        concurrently.
        """
        if not nodes:
            return {}, {}
        infos = {node.name: node_info(node) for node in nodes}
        first, *rest = infos
        others = infos.values() if self._answers_for_all and rest else ()
        try:
            body = predicate_body(task, infos[first], others)
            (raw,) = self._wait([self._start(Verb.PREDICATE, body)])
            refused, for_all = read_refusals(raw, first)
        except (NoAnswer, ValueError) as e:
            return {}, dict.fromkeys(infos, f"{self._rule.service.url} {e}")
        if for_all:
            return {name: refused.get(name, "") for name in infos}, {}
        self._answers_for_all = False
        calls = {
            name: self._start(Verb.PREDICATE, predicate_body(task, infos[name])) for name in rest
        }
        answers, failed = {first: refused.get(first, "")}, {}
        for name, call in calls.items():
            try:
                answers[name] = read_refusals(self._wait([call])[0], name)[0].get(name, "")
            except (NoAnswer, ValueError) as e:
                failed[name] = f"{self._rule.service.url} {e}"
        return answers, failed

    def _start(self, verb: Verb, body: Body) -> Future[bytes]:
        url = f"{self._rule.service.url.rstrip('/')}/{self._paths[verb]}"
        return self._extenders.start(url, body, max(self._time_s, 0.001))

    @property
    def _time_s(self) -> float:
        """The timeout in seconds of a call that starts now."""
        left_s = self._extenders.left_s(self._deadline_s)
        return min(self._rule.service.timeout_ms / 1000, left_s)

    def _wait(self, calls: Sequence[Future[bytes]]) -> list[bytes]:
        """Return the responses to calls; raises NoAnswer if a response is not there in time."""
        responses: list[bytes] = []
        for call in calls:
            time_s = self._time_s
            if time_s <= 0 and not call.done():
                call.cancel()
                raise NoAnswer(SPENT)
            try:
                responses.append(call.result(max(time_s, 0)))
            except TimeoutError as e:
                call.cancel()
                limit_ms = self._rule.service.timeout_ms
                is_short = time_s * 1000 < limit_ms
                limit = f"did not answer within {format_duration_ms(limit_ms)}"
                raise NoAnswer(SPENT if is_short else limit) from e
        return responses
