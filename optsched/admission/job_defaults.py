"""Defaults of new jobs (pkg/webhooks/admission/jobs/mutate).

Two defaults differ from the defaults of Volcano's webhook, but agree with Volcano's user guides. If
an extended resource, such as GPUs, has a request but no limit, the limit is set to the request. The
event `JobUnknown` becomes `Unknown`.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.findings import get_mapping
from optsched.api.job import DEFAULT_MAX_RETRY, TASK_NAME_PREFIX
from optsched.api.wellknown import DEFAULT_QUEUE

if TYPE_CHECKING:
    from optsched.admission.findings import Findings
    from optsched.admission.review import Raw
    from optsched.admission.world import Settings

_NEEDS: Final = {
    "tensorflow": ("svc",),
    "pytorch": ("svc",),
    "ray": ("svc",),
    "mpi": ("svc", "ssh"),
}
_HOST_DNS: Final = "ClusterFirstWithHostNet"
_ALIAS, _EVENT = "JobUnknown", "Unknown"

Step = str | int


class _Filler:
    """Sets fields in a copy of a spec, and records each change as a patch operation."""

    def __init__(self, spec: Raw, findings: Findings) -> None:
        self.spec = spec
        self.findings = findings
        # Maps the `id()` of each copied list or mapping to the copy. Keeping the copy prevents
        # Python from reusing its id.
        self._copies: dict[int, Any] = {}

    def set_path(self, steps: tuple[Step, ...], value: Any) -> None:  # noqa: ANN401  JSON
        """Set the value at a path in the spec; the path's parent must exist."""
        container: Any = self._copy_once(self.spec)
        self.spec = container
        for step in steps[:-1]:
            container[step] = self._copy_once(container[step])
            container = container[step]
        container[steps[-1]] = value
        self.findings.change(("spec", *steps), value)

    def _copy_once(self, found: Any) -> Any:  # noqa: ANN401  JSON
        if id(found) not in self._copies:
            found = copy(found)
            self._copies[id(found)] = found
        return found


def fill_in(spec: Raw, settings: Settings, findings: Findings) -> Raw:
    """Return a job's spec with all defaults; add the patch and the warnings to `findings`.

    A field of the wrong type is not changed; validation denies the job and names the field.
    """
    filler = _Filler(spec, findings)
    if not filler.spec.get("queue"):
        filler.set_path(("queue",), DEFAULT_QUEUE)
    if not filler.spec.get("schedulerName"):
        filler.set_path(("schedulerName",), settings.scheduler_names[0])
    if filler.spec.get("maxRetry") in (None, 0):
        filler.set_path(("maxRetry",), DEFAULT_MAX_RETRY)
    _fill_policies(filler, (), spec.get("policies"))
    tasks = spec.get("tasks")
    for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if isinstance(task, dict):
            _fill_task(filler, index, task)
    if filler.spec.get("minAvailable") in (None, 0):
        filler.set_path(("minAvailable",), _sum_minimums(filler.spec.get("tasks")))
    plugins = filler.spec.get("plugins")
    if isinstance(plugins, dict):
        required = {each for name in plugins for each in _NEEDS.get(name, ())}
        for name in sorted(required - plugins.keys()):
            filler.set_path(("plugins", name), [])
    return filler.spec


def refill(
    old: Raw, new: Raw, settings: Settings, findings: Findings, *, has_default_minimum: bool
) -> Raw:
    """Return the spec of an updated job; set each default again that the update dropped.

    `kubectl apply` sends the task list from the manifest, without the defaults.
    `has_default_minimum` is true if the manifest sets no `minAvailable` for the job. The default of
    the job's `minAvailable` is the sum of the `minAvailable` of its tasks.
    """
    filler = _Filler(fill_in(new, settings, findings), findings)
    old_volumes, new_volumes = old.get("volumes"), filler.spec.get("volumes")
    if isinstance(old_volumes, list) and isinstance(new_volumes, list):
        # Keep the names of the PVCs that the controller created for the job's volumes.
        for index, (volume, new_volume) in enumerate(zip(old_volumes, new_volumes, strict=False)):
            name = volume.get("volumeClaimName") if isinstance(volume, dict) else None
            if not name or volume.get("volumeClaim") is None:
                continue
            if new_volume == {k: v for k, v in volume.items() if k != "volumeClaimName"}:
                filler.set_path(("volumes", index, "volumeClaimName"), name)
    before, total = old.get("minAvailable"), _sum_minimums(filler.spec.get("tasks"))
    is_default = before == filler.spec.get("minAvailable") == _sum_minimums(old.get("tasks"))
    if has_default_minimum and is_default and before != total:
        filler.set_path(("minAvailable",), total)
    return filler.spec


def _fill_task(filler: _Filler, index: int, task: Raw) -> None:
    steps: tuple[Step, ...] = ("tasks", index)
    if not task.get("name"):
        filler.set_path((*steps, "name"), f"{TASK_NAME_PREFIX}{index}")
    if task.get("minAvailable") is None:
        # `api.job` computes the same default.
        partition = get_mapping(task, "partitionPolicy")
        minimum = _read_count(partition.get("minPartitions")) * _read_count(
            partition.get("partitionSize")
        )
        filler.set_path((*steps, "minAvailable"), minimum or _read_count(task.get("replicas")))
    if task.get("maxRetry") in (None, 0):
        filler.set_path((*steps, "maxRetry"), DEFAULT_MAX_RETRY)
    _fill_policies(filler, steps, task.get("policies"))
    spec, steps = get_mapping(get_mapping(task, "template"), "spec"), (*steps, "template", "spec")
    if spec.get("hostNetwork") is True and not spec.get("dnsPolicy"):
        filler.set_path((*steps, "dnsPolicy"), _HOST_DNS)
    for kind in ("initContainers", "containers"):
        containers = spec.get(kind)
        for position, container in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(container, dict):
                _fill_limits(filler, (*steps, kind, position), container)


def _sum_minimums(tasks: object) -> int:
    found = tasks if isinstance(tasks, list) else []
    return sum(_read_count(task.get("minAvailable")) for task in found if isinstance(task, dict))


def _read_count(value: object) -> int:
    """Return a number of pods; 0 if the value is not a positive integer and thus invalid."""
    return value if type(value) is int and value > 0 else 0


def _fill_limits(filler: _Filler, steps: tuple[Step, ...], container: Raw) -> None:
    resources = container.get("resources")
    requests = resources.get("requests") if isinstance(resources, dict) else None
    if not isinstance(resources, dict) or not isinstance(requests, dict):
        return
    limits = resources.get("limits")
    old_limits = limits if isinstance(limits, dict) else {}
    # The names of extended resources, such as nvidia.com/gpu, do not contain kubernetes.io/.
    missing = {
        name: value
        for name, value in requests.items()
        if "/" in name and "kubernetes.io/" not in name.removeprefix("requests.")
        if name not in old_limits
    }
    if not missing or not isinstance(limits, dict | None):
        return
    filler.set_path((*steps, "resources", "limits"), {**old_limits, **missing})
    names = ", ".join(sorted(missing))
    path = "spec"
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    filler.findings.warn(
        f"{path}.resources.limits: {names} was copied from requests, because Kubernetes requires "
        "devices in limits"
    )


def _fill_policies(filler: _Filler, steps: tuple[Step, ...], policies: object) -> None:
    for index, policy in enumerate(policies if isinstance(policies, list) else ()):
        if not isinstance(policy, dict):
            continue
        policy_path: tuple[Step, ...] = (*steps, "policies", index)
        if policy.get("event") == _ALIAS:
            filler.set_path((*policy_path, "event"), _EVENT)
        events = policy.get("events")
        if isinstance(events, list) and _ALIAS in events:
            renamed = [_EVENT if event == _ALIAS else event for event in events]
            filler.set_path((*policy_path, "events"), list(dict.fromkeys(renamed)))
