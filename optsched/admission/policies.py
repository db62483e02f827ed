"""Validation of lifecycle policies (pkg/webhooks/admission/jobs/validate/util.go)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.job import JobAction, JobEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.admission.findings import Findings
    from optsched.api.job import LifecyclePolicy

_INTERNAL: Final = frozenset({JobEvent.POD_RUNNING, JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED})
EVENTS: Final = tuple(event for event in JobEvent if event not in _INTERNAL)


def check_policies(policies: Sequence[LifecyclePolicy], path: str, findings: Findings) -> None:
    """Report invalid policies of a job or task; path: of the list, such as spec.policies."""
    seen_events: set[JobEvent] = set()
    seen_codes: set[int] = set()
    for position, policy in enumerate(policies):
        where = f"{path}[{position}]"
        if policy.events and policy.exit_code is not None:
            findings.deny(
                f"must not specify event and exitCode simultaneously: {where} has "
                f"{', '.join(policy.events)} and {policy.exit_code}; keep one of them"
            )
        elif policy.events:
            _check_events(policy, where, seen_events, findings)
        elif policy.exit_code is not None:
            _check_exit_code(policy.exit_code, where, seen_codes, findings)
        elif not findings.has_problem_with(f"{where}.e"):
            findings.deny(
                f"either event and exitCode should be specified: {where} has neither; write one"
            )
        if policy.action is None and not findings.has_problem_with(f"{where}.action"):
            findings.required(f"{where}.action", f"write one of {', '.join(JobAction)}")
    if JobEvent.ANY in seen_events and len(seen_events) > 1:
        named = ", ".join(event for policy in policies for event in policy.events)
        findings.deny(
            f"if there's * here, no other policy should be here: {path} names {named}; "
            "keep * or the others"
        )


def _check_events(
    policy: LifecyclePolicy, path: str, seen: set[JobEvent], findings: Findings
) -> None:
    for event in policy.events:
        if event in _INTERNAL:
            sentence = f"invalid policy event: write one of {', '.join(EVENTS)}"
            findings.invalid(f"{path}.event", event.value, sentence)
        elif event in seen:
            findings.deny(
                f"duplicate event {event.value}  across different policy: {path}; "
                "name it in one policy only"
            )
        seen.add(event)


def _check_exit_code(code: int, path: str, seen: set[int], findings: Findings) -> None:
    if code == 0:
        findings.deny(
            f"0 is not a valid error code: {path}.exitCode; write that of a failure, such as 1"
        )
    elif code in seen:
        findings.deny(f"duplicate exitCode {code}: {path}.exitCode; name it in one policy only")
    seen.add(code)
