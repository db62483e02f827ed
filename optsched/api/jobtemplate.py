"""JobTemplate: a job that flows are made of, read from `flow.volcano.sh/v1alpha1`.

Source of names: Volcano's flow/v1alpha1/jobtemplate_types.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optsched.api.fields import Fields
from optsched.api.job import JobSpec, read_job_spec
from optsched.api.job_schemas import JOB_TEMPLATE_SCHEMA
from optsched.api.meta import parse_meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.meta import ObjectMeta
    from optsched.units import FieldError


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A job that flows are made of.

    template: the spec as it stands, for the jobs that are made; `job`: the same, read. jobs: those
    made of it, as last written. errors: fields that cannot be read, at their defaults.
    """

    meta: ObjectMeta
    template: Mapping[str, Any] = field(default_factory=dict)
    job: JobSpec = field(default_factory=JobSpec)
    jobs: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.meta.key


def parse_jobtemplate(obj: object) -> tuple[JobTemplate | None, tuple[FieldError, ...]]:
    """The template in a manifest or an answer of the API server, and all that is wrong with it.

    None only for an object without a name.
    """
    errors: list[FieldError] = []
    meta = parse_meta(obj, errors)
    if meta is None:
        return None, tuple(errors)
    whole = Fields(obj, JOB_TEMPLATE_SCHEMA, "", errors)
    found = JobTemplate(
        meta=meta,
        template=whole.mapping("spec"),
        job=read_job_spec(whole.record("spec")),
        jobs=whole.record("status").texts("jobDependsOnList"),
        errors=tuple(errors),
    )
    return found, found.errors
