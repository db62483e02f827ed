"""An extender behind a real HTTP server: its responses, and the handling of its failures."""

from __future__ import annotations

import json
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import GangPhase, Owner
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.writer import encode
from optsched.kube.runtime.timing import SystemClock
from optsched.kube.scheduler.extender_client import MAX_BYTES, ExtenderClient
from optsched.policy.load import parse_policy
from optsched.policy.policy import SolverKind
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.small import cluster, gang, node, running, shape

EXACT = Limits(budget_ms=None, deterministic=10.0, num_workers=1)
both = pytest.mark.parametrize("solver", SolverKind, ids=lambda s: s.value)
ignorable = pytest.mark.parametrize("ignorable", [False, True], ids=["needed", "ignorable"])


class Service:
    """A server with a response per path that records its requests."""

    def __init__(self, port=0, **answers):
        self.answers = answers
        self.asked = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                verb = self.path.rpartition("/")[2]
                service.asked.append((self.path, body))
                answer = service.answers.get(verb, {})
                answer = answer(body) if callable(answer) else answer
                status, sent = answer if isinstance(answer, tuple) else (200, answer)
                sent = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_):
                """Suppress the log."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_):
                """Ignore clients that close the connection, which is part of the test."""

        self.server = Server(("127.0.0.1", port), Handler)
        self.scheme = "http"

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}/lab"

    def verbs(self):
        return [path.rpartition("/")[2] for path, _ in self.asked]

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


def policy_for(url, *verbs, solver=SolverKind.NONE, actions="enqueue, allocate", **arguments):
    """Return a policy with the plugins gang, priority and an extender."""
    given = {"urlPrefix": url, "httpTimeout": "2s", **arguments}
    given |= {f"{verb}Verb": verb for verb in verbs}
    lines = "".join(f"      extender.{n}: {json.dumps(v)}\n" for n, v in given.items())
    return parse_policy(
        f'actions: "{actions}"\nsolver: {solver.value}\ntiers:\n- plugins:\n  - name: priority\n'
        f"  - name: gang\n  - name: extender\n    arguments:\n{lines}"
        "- plugins:\n  - name: predicates\n  - name: proportion\n",
        "a.conf",
    )


def decide(snapshot, policy, seconds=5.0):
    """Run a session that calls a real extender."""
    budgets = replace(policy.budgets, period_ms=int(seconds * 1000))
    policy = replace(policy, budgets=budgets)
    extenders = ExtenderClient(SystemClock())
    try:
        outside = extenders.open_session(snapshot, policy)
        around = SessionContext(solver=InProcess(), limits=EXACT, outside=outside)
        report = run_session(snapshot, policy, around)
        if outside is not None:
            outside.closed(report.plan)
        return report
    finally:
        extenders.close()


def two(*gangs):
    return cluster([node("n0"), node("n1")], gangs)


def not_n0(body):
    """Return a response in Volcano's format, about one node."""
    return {"errorMessage": "n0 is being painted" if body["node"]["Name"] == "n0" else ""}


def all_at_once(body):
    """Return a response in optsched's format, about all nodes."""
    return {"nodeErrors": {"n0": "n0 is being painted"}}


# --- nodes ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("answer", "calls"), [(not_n0, 4), (all_at_once, 2)])
def test_a_node_that_is_refused_stays_empty(solver, answer, calls) -> None:
    snapshot = two(gang("a", ("w", 2, shape(1))), gang("big", ("w", 2, shape(3))))
    with Service(predicate=answer).running() as service:
        report = decide(snapshot, policy_for(service.url, "predicate", solver=solver))
    assert report.plan.binds == {"ns/a-w-0": "n1", "ns/a-w-1": "n1"}
    assert service.asked[0][0] == "/lab/predicate"
    assert len(service.asked) == calls
    assert "1 node did not pass the extender (n0 is being painted)" in str(
        report.plan.pending["ns/big"]
    )


def test_what_is_sent_has_the_names_of_volcanos_types() -> None:
    snapshot = two(gang("a", ("w", 1, shape(1, 2)), priority=3))
    with Service(predicate=not_n0).running() as service:
        decide(snapshot, policy_for(service.url, "predicate"))
    body = service.asked[0][1]
    task, where = body["task"], body["node"]
    assert (task["Namespace"], task["Name"], task["Job"]) == ("ns", "a-w-0", "ns/a")
    assert task["Resreq"]["MilliCPU"] == 1000
    assert task["Resreq"]["ScalarResources"] == {"nvidia.com/gpu": 2000}
    assert task["Pod"]["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "a"
    assert (where["Name"], where["Idle"]["MilliCPU"], where["State"]["Phase"]) == ("n0", 4000, 1)
    assert where["Node"]["metadata"]["name"] == "n0"


@both
def test_points_decide_between_nodes(solver) -> None:
    snapshot = two(gang("a", ("w", 1, shape(1))))
    answer = {"nodeScore": {"n1": 7.5, "elsewhere": 9}}
    with Service(prioritize=answer).running() as service:
        report = decide(snapshot, policy_for(service.url, "prioritize", solver=solver))
    assert report.plan.binds == {"ns/a-w-0": "n1"}
    assert report.plan.certificate.levels[-1].value == 7
    assert service.verbs() == ["prioritize"]
    assert [n["Name"] for n in service.asked[0][1]["nodes"]] == ["n0", "n1"]


def test_who_asks_for_no_managed_resource_is_not_asked_about() -> None:
    snapshot = cluster([node("n0", gpu=4)], [gang("a", ("w", 1, shape(1)))])
    arguments = {"managedResources": ["nvidia.com/gpu"]}
    with Service(predicate=not_n0).running() as service:
        policy = policy_for(service.url, "predicate", **arguments)
        assert len(decide(snapshot, policy).plan.binds) == 1
        assert service.asked == []
        asking = replace(snapshot, gangs=(gang("b", ("w", 1, shape(1, 1))),))
        assert decide(asking, policy).plan.binds == {}


# --- votes ---------------------------------------------------------------------------------------

PENDING = {"phase": GangPhase.PENDING, "min_resources": (("cpu", 1000),)}


def waiting(name):
    owner = Owner("batch.volcano.sh/v1alpha1", "Job", f"job-{name}", "1")
    return replace(gang(name, ("w", 1, shape(1)), **PENDING), tasks=(), owner=owner)


@both
def test_pods_are_created_as_the_service_votes(solver) -> None:
    """The extender votes by the owner of the PodGroup, as Crater's next version does."""

    def vote(body):
        (owner,) = body["job"]["PodGroup"]["ownerReferences"]
        assert owner["controller"] is True
        return {"status": -1 if owner["name"] == "job-a" else 0}

    with Service(jobEnqueueable=vote).running() as service:
        policy = policy_for(service.url, "jobEnqueueable", "jobEnqueued", solver=solver)
        report = decide(two(waiting("a"), waiting("b")), policy)
    assert [a.gang for a in report.plan.actions] == ["ns/b"]
    assert str(report.plan.pending.get("ns/a", "")) in (
        "",
        "RefusedByPlugin: the extender does not allow its pods to be created",
    )
    assert service.verbs() == ["jobEnqueueable", "jobEnqueueable", "jobEnqueued"]


def test_an_overused_queue_gets_nothing() -> None:
    with Service(queueOverused={"overused": True}).running() as service:
        report = decide(
            two(gang("a", ("w", 1, shape(1)))), policy_for(service.url, "queueOverused")
        )
    assert report.plan.binds == {}
    assert service.verbs() == ["queueOverused"]
    assert service.asked[0][1]["queue"]["Name"] == "default"


def test_a_gang_that_is_not_ready_does_not_start() -> None:
    snapshot = two(gang("a", ("w", 2, shape(1))), gang("b", ("w", 1, shape(1))))
    with Service(jobReady=lambda b: {"status": b["job"]["Name"] == "b"}).running() as service:
        report = decide(snapshot, policy_for(service.url, "jobReady"))
    assert list(report.plan.binds) == ["ns/b-w-0"]
    assert str(report.plan.pending["ns/a"]) == (
        "RefusedByPlugin: the extender does not allow it to start"
    )
    assert {(b["job"]["Name"], b["job"]["Placed"]) for _, b in service.asked} == {
        ("a", 2),
        ("b", 1),
    }


@pytest.mark.parametrize(("status", "left"), [(1, {"ns/low-w-1"}), (-1, set()), (0, None)])
def test_victims_are_whom_the_service_names(status, left) -> None:
    low = gang("low", ("w", 2, shape(4)), least=0, phase=GangPhase.RUNNING)
    low = replace(low, tasks=tuple(running(t, f"n{i}") for i, t in enumerate(low.tasks)))
    high = gang("high", ("w", 1, shape(4)), priority=5)
    named = [{"Namespace": "ns", "Name": "low-w-1"}] if status > 0 else []
    with Service(preemptable={"status": status, "victims": named}).running() as service:
        actions = "enqueue, allocate, preempt"
        policy = policy_for(service.url, "preemptable", actions=actions)
        report = decide(two(low, high), policy)
    gone = {a.task for a in report.plan.actions if hasattr(a, "preemptor")}
    assert len(gone) == 1 if left is None else gone == left
    evictees = {e["Name"] for _, body in service.asked for e in body["evictees"]}
    assert evictees <= {"low-w-0", "low-w-1"}
    assert evictees >= {name.removeprefix("ns/") for name in gone}
    assert service.asked[0][1]["evictor"]["Name"] == "high-w-0"


# --- beginning and end ---------------------------------------------------------------------------


def test_it_is_told_of_the_session() -> None:
    verbs = ("onSessionOpen", "onSessionClose", "allocateFunc", "deallocateFunc")
    with Service().running() as service:
        decide(two(gang("a", ("w", 1, shape(1)))), policy_for(service.url, *verbs))
    assert service.verbs() == ["onSessionOpen", "allocateFunc", "onSessionClose"]
    opened = service.asked[0][1]
    assert opened["NodeList"] == ["n0", "n1"]
    assert opened["Jobs"]["ns/a"]["MinAvailable"] == 1
    assert opened["Queues"]["default"]["State"] == "Open"
    assert service.asked[1][1]["task"]["Name"] == "a-w-0"


@ignorable
def test_without_its_opening_nothing_else_is_heard(ignorable) -> None:
    with Service(onSessionOpen=(500, {})).running() as service:
        policy = policy_for(service.url, "onSessionOpen", "predicate", ignorable=ignorable)
        report = decide(two(gang("a", ("w", 1, shape(1)))), policy)
    assert bool(report.plan.binds) is ignorable
    assert service.verbs() == (
        ["onSessionOpen", *["predicate"] * 2] if ignorable else [service.verbs()[0]]
    )


# --- no answer -----------------------------------------------------------------------------------


def slow(_body):
    time.sleep(0.4)
    return {}


BROKEN = {
    "slow": (slow, "did not answer"),
    "failing": ((503, {}), "answered 503 Service Unavailable"),
    "moved": ((302, {}), "answered 302 Found"),
    "not JSON": (b"<html>", "returned text that is not JSON"),
    "no object": ([1], "returned JSON that is not an object"),
    "odd": ({"errorMessage": 5}, "returned an errorMessage that is not a string"),
    "deep": (b"[" * 100_000, "returned JSON that is nested too deeply"),
    "large": (b"{" + b" " * MAX_BYTES + b"}", "answered more than 10 MiB"),
}  # fmt: skip


@both
@ignorable
@pytest.mark.parametrize("fault", BROKEN)
def test_who_does_not_answer_has_no_say_or_holds_up_what_it_is_asked_about(
    fault, ignorable, solver
) -> None:
    answer, words = BROKEN[fault]
    snapshot = two(gang("a", ("w", 1, shape(1))))
    with Service(predicate=answer).running() as service:
        timeout = {"httpTimeout": "100ms"} if fault == "slow" else {}
        policy = policy_for(service.url, "predicate", ignorable=ignorable, solver=solver, **timeout)
        report = decide(snapshot, policy)
    assert bool(report.plan.binds) is ignorable
    assert words in report.trace.faults[0].error
    assert service.url in str(report.trace.faults[0])
    if not ignorable:
        reason = report.plan.pending["ns/a"]
        assert reason.code is ReasonCode.PREDICATES
        assert words in reason.message


@ignorable
def test_nobody_at_the_address(ignorable) -> None:
    with Service().running() as service:
        url = service.url
    policy = policy_for(url, "predicate", ignorable=ignorable)
    report = decide(two(gang("a", ("w", 1, shape(1)))), policy)
    assert bool(report.plan.binds) is ignorable
    assert "could not be reached: " in report.trace.faults[0].error


@ignorable
def test_votes_without_an_answer(ignorable) -> None:
    verbs = ("jobEnqueueable", "jobReady", "queueOverused")
    snapshot = two(waiting("w"), gang("a", ("w", 1, shape(1))))
    with Service(**dict.fromkeys(verbs, (500, {}))).running() as service:
        report = decide(snapshot, policy_for(service.url, *verbs, ignorable=ignorable))
    assert bool(report.plan.actions) is ignorable
    assert {f.point for f in report.trace.faults} >= {"jobEnqueueable", "queueOverused"}


@ignorable
def test_victims_without_an_answer(ignorable) -> None:
    low = gang("low", ("w", 2, shape(4)), least=0, phase=GangPhase.RUNNING)
    low = replace(low, tasks=tuple(running(t, f"n{i}") for i, t in enumerate(low.tasks)))
    with Service(preemptable=b"nothing").running() as service:
        policy = policy_for(
            service.url, "preemptable", ignorable=ignorable, actions="allocate, preempt"
        )
        report = decide(two(low, gang("high", ("w", 1, shape(4)), priority=5)), policy)
    assert any(hasattr(a, "preemptor") for a in report.plan.actions) is ignorable


def test_points_that_are_none_do_not_count() -> None:
    for answer in ({"nodeScore": {"n0": "much"}}, {"errorMessage": "asleep"}, {"nodeScore": 3}):
        with Service(prioritize=answer).running() as service:
            report = decide(
                two(gang("a", ("w", 1, shape(1)))), policy_for(service.url, "prioritize")
            )
        assert len(report.plan.binds) == 1
        assert len(report.trace.faults) == 1


def test_all_calls_of_a_session_together_have_a_limit() -> None:
    """A session with five shapes and a hanging extender takes less than five timeouts."""
    gangs = [gang(f"g{i}", ("w", 1, shape(1, i))) for i in range(5)]
    held = threading.Event()

    def hang(_body):
        held.wait(10)
        return {}

    with Service(predicate=hang).running() as service:
        began = time.monotonic()
        report = decide(
            cluster([node("n0", 9, 20)], gangs),
            policy_for(service.url, "predicate", httpTimeout="300ms", ignorable=True),
            seconds=0.5,
        )
        took = time.monotonic() - began
        held.set()
    assert len(report.plan.binds) == 5
    assert took < 1.2
    assert any("is used up" in f.error for f in report.trace.faults)


def test_sessions_together_get_through_a_slow_service() -> None:
    """The extender needs one call for each of sixty nodes, which takes longer than a session."""

    def slowly(body):
        time.sleep(0.05)
        return not_n0(body)

    snapshot = cluster([node(f"n{i}") for i in range(60)], [gang("a", ("w", 50, shape(4)))])
    extenders = ExtenderClient(SystemClock())
    with Service(predicate=slowly).running() as service:
        policy = policy_for(service.url, "predicate")
        policy = replace(policy, budgets=replace(policy.budgets, period_ms=200))
        binds: list[int] = []
        while len(binds) < 60 and binds[-1:] != [50]:
            outside = extenders.open_session(snapshot, policy)
            report = run_session(snapshot, policy, SessionContext(outside=outside))
            binds.append(len(report.plan.binds))
        asked = [body["node"]["Name"] for _, body in service.asked]
    extenders.close()
    assert binds[0] == 0
    assert binds[-1] == 50
    assert "n0" not in report.plan.binds.values()
    assert len(asked) < len(binds) * 60


def test_a_service_that_is_quick_is_asked_anew_each_time() -> None:
    snapshot = two(gang("a", ("w", 1, shape(1))))
    extenders = ExtenderClient(SystemClock())
    with Service(predicate=not_n0).running() as service:
        policy = policy_for(service.url, "predicate")
        for number in (1, 2):
            run_session(
                snapshot, policy, SessionContext(outside=extenders.open_session(snapshot, policy))
            )
            assert len(service.asked) == 2 * number
    extenders.close()


def test_a_connection_that_was_closed_is_made_anew() -> None:
    snapshot = two(gang("a", ("w", 1, shape(1))))
    extenders = ExtenderClient(SystemClock())
    service = Service(predicate=not_n0)
    policy = policy_for(service.url, "predicate")
    for _ in range(2):
        with service.running():
            outside = extenders.open_session(snapshot, policy)
            report = run_session(snapshot, policy, SessionContext(outside=outside))
        assert report.trace.faults == ()
        service = Service(predicate=not_n0, port=service.server.server_port)
    service.server.server_close()
    extenders.close()


# --- the record ----------------------------------------------------------------------------------


@both
def test_a_recorded_session_is_repeated_without_the_service(solver) -> None:
    snapshot = two(
        gang("a", ("w", 2, shape(1))), gang("big", ("w", 2, shape(3))), waiting("w"), waiting("v")
    )
    said = {
        "predicate": not_n0,
        "prioritize": {"nodeScore": {"n1": 3}},
        "jobEnqueueable": lambda b: {"status": -1 if b["job"]["Name"] == "v" else 1},
    }
    with Service(**said).running() as service:
        policy = policy_for(service.url, *said, solver=solver)
        live = decide(assemble(encode(snapshot)).snapshot, policy)
    taken = assemble(encode(snapshot)).snapshot
    recorded = assemble(encode(replace(taken, answers=live.trace.answers)))
    assert recorded.problems == ()
    around = SessionContext(solver=InProcess(), limits=EXACT)
    again = run_session(recorded.snapshot, policy, around)
    assert again.plan.actions == live.plan.actions
    assert again.plan.pending == live.plan.pending
    assert again.trace.answers == live.trace.answers
    forgotten = run_session(taken, policy, around)
    assert forgotten.plan.binds == {}
    assert "no reply has been recorded" in str(forgotten.plan.pending["ns/a"])


# --- TLS -----------------------------------------------------------------------------------------


def certificate(folder):
    """Return a self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "extender")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = folder / "cert.pem"
    private = serialization.PrivateFormat.PKCS8
    pem.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    )
    return pem


@pytest.mark.parametrize("is_trusted", [True, False])
def test_https_asks_for_a_certificate_that_is_trusted(tmp_path, monkeypatch, is_trusted) -> None:
    pem = certificate(tmp_path)
    service = Service(predicate=not_n0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    service.server.socket = context.wrap_socket(
        service.server.socket, server_side=True, do_handshake_on_connect=False
    )
    service.scheme = "https"
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with service.running():
        report = decide(two(gang("a", ("w", 1, shape(1)))), policy_for(service.url, "predicate"))
    if is_trusted:
        assert report.plan.binds == {"ns/a-w-0": "n1"}
    else:
        assert report.plan.binds == {}
        assert "CERTIFICATE_VERIFY_FAILED" in report.trace.faults[0].error
