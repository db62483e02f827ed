"""With which rights pods and containers run.

As k8s.io/kubernetes, pkg/apis/core/validation, validates security contexts. What an administrator
allows (privileged pods, sysctls) is left to the server that makes the pods.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from optsched.admission.paths import check_relative

if TYPE_CHECKING:
    from optsched.admission.parts import Part

_MAX_ID: Final = 2**31 - 1
_IDS: Final = ("runAsUser", "runAsGroup")
_SYSCTL: Final = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_MAX_SYSCTL: Final = 253
_LOCALHOST: Final = "Localhost"
_PROFILES: Final = (_LOCALHOST, "RuntimeDefault", "Unconfined")


def check_pod_context(context: Part) -> None:
    """What holds for all containers of a pod."""
    _check_ids(context)
    context.within("fsGroup", 0, _MAX_ID)
    for position, group in enumerate(context.raw.get("supplementalGroups") or ()):
        if not 0 <= (group or 0) <= _MAX_ID:
            path = f"{context.path}.supplementalGroups[{position}]"
            context.findings.invalid(path, group, f"write 0 to {_MAX_ID}")
    _check_sysctls(context)
    for name, choices in (
        ("fsGroupChangePolicy", ("Always", "OnRootMismatch")),
        ("supplementalGroupsPolicy", ("Merge", "Strict")),
        ("seLinuxChangePolicy", ("MountOption", "Recursive")),
    ):
        context.choose(name, *choices, is_required=context.has(name))
    _check_profiles(context)


def check_container_context(context: Part, *, has_own_users: bool) -> None:
    """What holds for one container; has_own_users: hostUsers of its pod is false."""
    _check_ids(context)
    context.choose("procMount", "Default", "Unmasked", is_required=context.has("procMount"))
    if context.text("procMount") == "Unmasked" and not has_own_users:
        context.invalid("procMount", "needs hostUsers: false in the pod; or write Default")
    _check_profiles(context)
    if context.raw.get("allowPrivilegeEscalation") is False:
        _check_escalation(context)


def _check_escalation(context: Part) -> None:
    if context.raw.get("privileged"):
        context.invalid(
            "allowPrivilegeEscalation", "cannot be false while privileged is true: change one"
        )
    capabilities = context.part("capabilities")
    if capabilities is not None and "CAP_SYS_ADMIN" in capabilities.list_of("add"):
        context.invalid(
            "allowPrivilegeEscalation",
            "cannot be false while capabilities.add has CAP_SYS_ADMIN: change one",
        )


def _check_ids(context: Part) -> None:
    for name in _IDS:
        context.within(name, 0, _MAX_ID)


def _check_sysctls(context: Part) -> None:
    seen: set[str] = set()
    for sysctl in context.parts("sysctls"):
        name = sysctl.text("name")
        sysctl.need(
            "name", _is_sysctl, f"write at most {_MAX_SYSCTL} characters such as net.core.somaxconn"
        )
        if name and name in seen:
            sysctl.duplicate("name", name, "name it once")
        seen.add(name)


def _is_sysctl(name: str) -> bool:
    return len(name) <= _MAX_SYSCTL and _SYSCTL.fullmatch(name) is not None


def _check_profiles(context: Part) -> None:
    for name in ("seccompProfile", "appArmorProfile"):
        profile = context.part(name)
        if profile is None:
            continue
        profile.choose("type", *_PROFILES, is_required=True)
        if profile.text("type") != _LOCALHOST:
            if profile.has("localhostProfile"):
                profile.invalid("localhostProfile", f"can only be set when type is {_LOCALHOST}")
        elif not profile.has("localhostProfile"):
            profile.required("localhostProfile", f"write the profile that type {_LOCALHOST} names")
        elif name == "seccompProfile":
            check_relative(profile, "localhostProfile")
        elif not profile.text("localhostProfile").strip():
            profile.required("localhostProfile", f"write the profile that type {_LOCALHOST} names")
        elif profile.text("localhostProfile").strip() != profile.text("localhostProfile"):
            profile.invalid("localhostProfile", "write it without spaces around it")
