"""Write webhook.yaml: run `python deploy/manifests/render.py`.

The test tests/kube/webhook/test_manifests.py fails if the manifests and the code disagree.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from optsched.admission.services import (
    DEFAULT_PATHS,
    NAMESPACE,
    PORT,
    SERVICE_NAME,
    SERVICE_OF,
    configuration,
)

PATH = Path(__file__).parent / "webhook.yaml"
HEAD = """\
# What API servers ask before they store something, and where; webhook-deployment.yaml comes first.
# Whom to trust is filled in by `optsched webhook` itself. Where that has --admission-conf, the
# matchConditions of mutatepod.volcano.sh have to go: groups are of any pods. Made by render.py.
"""


def service() -> dict[str, object]:
    """Return the Service in front of the webhook's replicas."""
    port = {"name": "https", "port": PORT, "targetPort": "https"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE_NAME, "namespace": NAMESPACE},
        "spec": {"selector": {"app": "optsched-webhook"}, "ports": [port]},
    }


def render() -> str:
    """Return the manifest as YAML."""
    objects = [service(), *(configuration(SERVICE_OF[path]) for path in DEFAULT_PATHS)]
    return HEAD + yaml.safe_dump_all(objects, sort_keys=False, width=110)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
