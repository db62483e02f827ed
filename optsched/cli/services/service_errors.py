"""Exit codes of services that can not start."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from optsched.cli.base.exit_codes import describe_error
from optsched.cli.base.path_arguments import BadInput
from optsched.policy.diagnostic import PolicyError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def service_errors() -> Iterator[None]:
    """End with 2 for a policy or certificate with mistakes, with 1 without cluster or address."""
    # Kubernetes' client takes half a second to load; other commands and --help do without.
    from optsched.kube.client.client import ConfigError
    from optsched.kube.serving.certificate_sources import CertificateError

    try:
        yield
    except (PolicyError, CertificateError) as e:
        raise BadInput(describe_error(e)) from e
    except (ConfigError, OSError) as e:
        raise click.ClickException(describe_error(e)) from e
