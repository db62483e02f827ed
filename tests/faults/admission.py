"""A webhook that reviews only the objects of one site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from optsched.admission.services import CONTROLLERS, SERVICE_OF, configuration
from optsched.api.kinds import JOB, collection_path, find_kind
from optsched.api.wellknown import SUBMITTER
from optsched.formats.snapshots.object_stores import NAMESPACE_LABEL
from tests.faults.schedule import Flaw, Submission
from tests.faults.user import DENIED, manifest_of
from tests.support.api import Refused, until
from tests.support.webhooks import Webhook

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.live import Site

PATHS: Final = tuple(
    f"/{plural}/{verb}"
    for plural in ("pods", "podgroups", "jobs")
    for verb in ("mutate", "validate")
)
"""Jobs come last, because `await_reviews` waits for the reviews of jobs."""

TIMEOUT_S: Final = 2
"""The time after which the API server refuses a request whose review has no response."""

USERS: Final = {
    "scheduler": "system:serviceaccount:volcano-system:optsched-scheduler",
    "controllers": CONTROLLERS[0],
}
"""The users of the processes, because a webhook reviews the writes of other users."""


def register_webhook(site: Site, policy: str = "Fail") -> None:
    """Register webhook configurations that are limited to the namespace of a site."""
    for path in PATHS:
        body = configuration(SERVICE_OF[path], site.name, site.name)
        (hook,) = body["webhooks"]
        hook["namespaceSelector"] = {"matchLabels": {NAMESPACE_LABEL: site.name}}
        hook |= {"timeoutSeconds": TIMEOUT_S, "failurePolicy": policy}
        kind = find_kind(body["apiVersion"], body["kind"])
        assert kind is not None
        site.create(collection_path(kind), body)


def start_webhook(site: Site, kubeconfig: Path, log: Path, port: int, door: int) -> Webhook:
    """Start a webhook for the configurations of a site without waiting.

    `door` is the port to which API servers connect.
    """
    flags = [
        *("--webhook-url", f"https://127.0.0.1:{door}"),
        *("--scheduler-name", site.name, "--enabled-admission", ",".join(PATHS)),
        *("--webhook-namespace", site.name, "--webhook-service-name", site.name),
        *(part for name in CONTROLLERS for part in ("--trusted-user", name)),
    ]
    return site.supervise(Webhook(kubeconfig, log, port, *flags))


def await_reviews(site: Site) -> None:
    """Wait until the API server refuses an invalid job, and a valid job gets its submitter."""
    path = f"{collection_path(JOB, site.name)}?dryRun=All"

    def send(flaw: Flaw) -> dict[str, Any]:
        return site.api.post(path, manifest_of(Submission(0.0, "probe", 1, 1.0, flaw), site))

    def is_reviewed() -> bool:
        try:
            send(Flaw.MIN_AVAILABLE)
        except Refused as e:
            if DENIED not in str(e):
                return False
        else:
            return False
        try:
            return SUBMITTER in send(Flaw.NONE)["metadata"].get("annotations", {})
        except Refused:
            return False

    until(is_reviewed, "the webhook reviews jobs")
