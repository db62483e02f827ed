"""A user who submits jobs to an API server whose webhook comes and goes."""

from __future__ import annotations

import http.client
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from optsched.api.kinds import JOB, collection_path
from tests.faults.schedule import Flaw
from tests.support.api import Refused
from tests.support.vcjobs import job, task

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.schedule import Submission
    from tests.support.live import Site

PAUSE_S: Final = 0.2
DENIED: Final = "denied the request"


class User:
    """A user in a thread, who repeats each submission until its job is stored or denied.

    The user repeats the last denied submission until the end, so that invalid jobs come whenever
    the webhook is away.

    Attributes
    ----------
    admitted
        The names of invalid jobs that the API server stored.
    denied
        The names of invalid jobs that the webhook denied.
    num_unreviewed
        The number of submissions that failed because the webhook did not respond.

    """

    def __init__(
        self, site: Site, submissions: tuple[Submission, ...], is_away: Callable[[], bool]
    ) -> None:
        """`is_away` returns whether the API server is down."""
        self.admitted: set[str] = set()
        self.denied: set[str] = set()
        self.num_unreviewed = 0
        self._site = site
        self._is_away = is_away
        self._left = list(submissions)
        self._last_denied: Submission | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play, name="user")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def find_left(self) -> list[str]:
        """Return sentences about the jobs that are neither stored nor denied."""
        return [f"job {each.name} is neither stored nor denied" for each in tuple(self._left)]

    def _play(self) -> None:
        begun = time.monotonic()
        try:
            while not self._over.wait(PAUSE_S):
                now_s = time.monotonic() - begun
                for each in [each for each in self._left if each.at_s <= now_s]:
                    if self._can_submit() and self._submit(each):
                        self._left.remove(each)
                if self._last_denied is not None and self._can_submit():
                    self._submit(self._last_denied)
        finally:
            self._site.api.close()

    def _can_submit(self) -> bool:
        return not (self._over.is_set() or self._is_away())

    def _submit(self, submission: Submission) -> bool:
        """Submit a job, and return whether the job needs no further submission."""
        path = collection_path(JOB, self._site.name)
        try:
            self._site.api.post(path, manifest_of(submission, self._site))
        except Refused as e:
            self.num_unreviewed += "failed calling webhook" in str(e)
            if submission.flaw and DENIED in str(e):
                self.denied.add(submission.name)
                self._last_denied = submission
                return True
            if e.code != http.HTTPStatus.CONFLICT:
                return False
        except (OSError, http.client.HTTPException):
            return False
        if submission.flaw:
            self.admitted.add(submission.name)
        return True


def manifest_of(submission: Submission, site: Site) -> dict[str, Any]:
    """Return the job of a submission, for the schedulers and nodes of a site."""
    one = task("w", submission.replicas)
    one["template"]["metadata"] = {
        "annotations": {"optsched.io/run-seconds": str(submission.run_s)}
    }
    container = one["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "1"}}
    body = job(one, name=submission.name)
    body["metadata"] = {"name": submission.name}
    match submission.flaw:
        case Flaw.MIN_AVAILABLE:
            body["spec"]["minAvailable"] = submission.replicas + 1
        case Flaw.QUEUE:
            body["spec"]["queue"] = f"{site.name}-missing"
        case Flaw.TEMPLATE:
            container["name"] = "No_Name"
    site.suit(body)
    return body
