"""Restrictions on tenants: guarded annotations, PriorityClasses, owners and PodGroup status.

A tenant that writes a guarded annotation could hold more than its share of the cluster. Only
schedulers and device plugins may record which devices a pod holds. Users who may update queues are
administrators and may write all annotations. Administrators may allow tenants to write some of the
guarded annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.admission.findings import get_mapping
from optsched.admission.review import AccessQuestion, Action
from optsched.admission.submitters import is_of_cluster, subjects_of
from optsched.api.json_fields import annotations_of
from optsched.api.kinds import POD, QUEUE
from optsched.api.wellknown import (
    ADMITTED_QUEUE,
    COOLDOWN_TIME,
    CRATER_USER,
    GPU_INDEX,
    MOVES,
    PREDICATE_TIME,
    PREEMPTABLE,
    TOPOLOGY_DECISION,
    USER,
    Subject,
    is_mark,
    is_true,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from optsched.admission.findings import Review
    from optsched.admission.review import Raw, Request
    from optsched.api.kinds import Kind

GUARDED: Final = (PREEMPTABLE, COOLDOWN_TIME, USER, CRATER_USER)
"""Annotations and labels that protect a pod from eviction or name the user to charge."""

RESERVED: Final = (
    ADMITTED_QUEUE,
    GPU_INDEX,
    MOVES,
    PREDICATE_TIME,
    TOPOLOGY_DECISION,
    "volcano.sh/vgpu-ids-new",
    "volcano.sh/vgpu-node",
    "volcano.sh/vgpu-time",
    "volcano.sh/devices-to-allocate",
    "volcano.sh/bind-phase",
    "volcano.sh/bind-time",
)
"""Pod annotations that only schedulers and device plugins may write."""

RESERVED_PREFIX: Final = "hami.io/"
_RESERVED_FOR: Final = "schedulers and device plugins write it"
_NODES: Final = "system:nodes"
SYSTEM_CLASSES: Final = "system-"


def check_annotations(review: Review, *templates: str) -> None:
    """Deny guarded annotations and labels, unless the submitter may write them.

    `templates` names the spec fields whose list items have a pod template, such as `tasks`.
    """
    before = set(_annotations_and_labels(review.request.old, templates))
    for path, key, value in _annotations_and_labels(review.request.obj, templates):
        if key not in GUARDED or (path, key, value) in before:
            continue
        for subject in subjects_of(review.request, review.settings):
            is_harmless = is_true(value) if key == PREEMPTABLE else value == subject.user
            if is_harmless or key in review.settings.tenant_annotations:
                continue
            if not _is_administrator(subject, review):
                review.deny(
                    f"{path}[{key}]: Forbidden: user {subject.user} may not write {value!r}: "
                    f"needs the right to update queues.{QUEUE.group} or --tenant-annotation={key}"
                )


def check_reserved(review: Review) -> None:
    """Deny pod annotations that only schedulers and device plugins may write."""
    # Kubelets and the device plugins in kube-system update device annotations of existing pods.
    is_of_nodes = _NODES in review.request.groups or is_of_cluster(review.request.user)
    if review.request.action is not Action.UPDATE or not is_of_nodes:
        keys = _find_changed(review.request, _is_reserved)
        _deny_reserved(keys, _RESERVED_FOR, review)


def check_templates(review: Review) -> None:
    """Deny forbidden PriorityClasses and annotations in the pod templates of a new job.

    The pods that controllers create are not reviewed, so their templates are checked instead.
    """
    for path, template in _pod_templates(review.request.obj, ("tasks",)):
        check_priority_of_pod(get_mapping(template, "spec"), review, f"{path}.spec")
        annotations = annotations_of(template)
        keys = [key for key in sorted(annotations) if _is_reserved(key)]
        subjects = subjects_of(review.request, review.settings) if keys else ()
        if not all(_is_administrator(each, review) for each in subjects):
            for key in keys:
                review.deny(
                    f"{path}.metadata.annotations[{key}]: Forbidden: {_RESERVED_FOR}; leave it out"
                )


def check_marks(review: Review) -> None:
    """Deny PodGroup annotations that only schedulers may write; users may only remove them.

    Schedulers use PodGroup annotations to record evicted pods, the capacity reserved for moved
    pods, and the time at which a plugin last moved pods.
    """
    after = annotations_of(review.request.obj or {})
    keys = [key for key in _find_changed(review.request, is_mark) if key in after]
    if keys and not _is_scheduler(review):
        _deny_reserved(keys, "schedulers write it", review)


def can_write_status(review: Review) -> bool:
    """Return whether the user may write PodGroup status: controllers, schedulers and admins may."""
    if review.request.user in review.settings.trusted or _is_scheduler(review):
        return True
    return _is_administrator(Subject(review.request.user, review.request.groups), review)


def _is_reserved(key: str) -> bool:
    return key in RESERVED or key.startswith(RESERVED_PREFIX)


def _find_changed(request: Request, is_reserved: Callable[[str], bool]) -> list[str]:
    """Return the reserved annotations that a request adds, changes or removes."""
    before = annotations_of(request.old or {})
    after = annotations_of(request.obj or {})
    return [
        key
        for key in sorted(before.keys() | after.keys())
        if is_reserved(key) and before.get(key) != after.get(key)
    ]


def _deny_reserved(keys: Sequence[str], owner: str, review: Review) -> None:
    subject = next(iter(subjects_of(review.request, review.settings)), None)
    is_trusted = review.request.user in review.settings.trusted
    if not keys or is_trusted or subject is None or _is_administrator(subject, review):
        return
    for key in keys:
        review.deny(f"metadata.annotations[{key}]: Forbidden: {owner}; leave it out")


def check_priority(name: object, review: Review, path: str = "spec") -> None:
    """Deny the PriorityClass of the spec at `path` if the submitter may not use it."""
    if not isinstance(name, str) or not name:
        return
    allowed = review.settings.tenant_classes
    if name in allowed if allowed is not None else not is_system_class(name):
        return
    for subject in subjects_of(review.request, review.settings):
        if not _is_administrator(subject, review):
            review.deny(
                f"{path}.priorityClassName: Forbidden: user {subject.user} may not name {name}: "
                f"needs the right to update queues.{QUEUE.group} or --tenant-priority-class={name}"
            )


def check_priority_of_pod(spec: Mapping[str, object], review: Review, path: str = "spec") -> None:
    """Deny the PriorityClass of a pod spec if the submitter may not use it.

    The cluster's default class is allowed, because the API server writes it into pods without a
    class.
    """
    name = spec.get("priorityClassName")
    if is_system_class(name) or name != review.world.default_priority_class():
        check_priority(name, review, path)


def check_owner(review: Review, *kinds: Kind) -> None:
    """Deny a new owner reference to one of `kinds`, which only controllers may set.

    Controllers treat an object with an owner reference as part of the owner's workload, so a forged
    reference could make a controller end another user's workload.
    """
    if review.request.user in review.settings.trusted:
        return
    before = {identity for identity, _ in _identify_owners(review.request.old)}
    reserved = {(kind.group, kind.kind) for kind in kinds}
    for identity, owner in _identify_owners(review.request.obj):
        if identity in before or identity[:2] not in reserved:
            continue
        subject = Subject(review.request.user, review.request.groups)
        if not _is_administrator(subject, review):
            review.deny(
                f"metadata.ownerReferences: Forbidden: user {subject.user} may not name "
                f"{owner.get('kind')} {owner.get('name')} as owner: controllers write it; "
                "leave it out"
            )


def _identify_owners(obj: Raw | None) -> Iterator[tuple[tuple[str, str, str], Raw]]:
    """Yield (group, kind, UID) of each owner reference, and the reference.

    A forged reference may combine the kind of one owner with the UID of another.
    """
    owners = get_mapping(obj, "metadata").get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict):
            group = str(owner.get("apiVersion")).rpartition("/")[0]
            yield (group, str(owner.get("kind")), str(owner.get("uid"))), owner


def is_system_class(name: object) -> bool:
    """Return whether a PriorityClass is a system class, whose pods are never evicted."""
    return isinstance(name, str) and name.startswith(SYSTEM_CLASSES)


def warn_of_ineffective_class(name: object, review: Review) -> None:
    """Warn that a PodGroup's PriorityClass takes effect only if its pods have the same class.

    Most pods are created after their PodGroup, so the scheduler, not admission, compares the
    priorities of the pods and the PodGroup.
    """
    if isinstance(name, str) and name and name not in (review.settings.tenant_classes or ()):
        review.warn(
            f"spec.priorityClassName: {name} takes effect only if the pods have that priority too: "
            f"name it in their templates, or request --tenant-priority-class={name}"
        )


def _is_administrator(subject: Subject, review: Review) -> bool:
    question = AccessQuestion(subject, "update", QUEUE, "")
    return bool(review.answer(question, default=True))


def _is_scheduler(review: Review) -> bool:
    """Return whether the user may bind pods in all namespaces, like a scheduler."""
    subject = Subject(review.request.user, review.request.groups)
    question = AccessQuestion(subject, "create", POD, "", subresource="binding")
    return bool(review.answer(question, default=True))


def _annotations_and_labels(
    obj: Raw | None, templates: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Yield (path, key, value) of each annotation and label, also of those in pod templates."""
    found = [("metadata", get_mapping(obj, "metadata"))]
    for path, template in _pod_templates(obj, templates):
        found.append((f"{path}.metadata", get_mapping(template, "metadata")))
    for path, metadata in found:
        for kind in ("annotations", "labels"):
            for key, value in get_mapping(metadata, kind).items():
                yield f"{path}.{kind}", str(key), str(value)


def _pod_templates(
    obj: Raw | None, fields: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the path and value of each pod template in the list-valued spec fields `fields`."""
    for name in fields:
        listed = get_mapping(obj, "spec").get(name)
        for number, each in enumerate(listed if isinstance(listed, list) else ()):
            yield f"spec.{name}[{number}].template", get_mapping(each, "template")
