"""Write webhook.yaml and webhook-pods.yaml: run `python deploy/manifests/render.py`.

tests/kube/test_webhook_manifests.py fails where the manifests and the code disagree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from optsched.admission.registration import NAMESPACE, PORT, SERVICE_NAME, configuration
from optsched.admission.services import DEFAULT_PATHS, GATE_ASKED, SERVICE_OF

PATH = Path(__file__).parent / "webhook.yaml"
PODS_PATH = PATH.with_name("webhook-pods.yaml")
PODS_HEAD = """\
# With webhook.yaml, if `optsched webhook` has --feature-gates=SchedulingGatesQueueAdmission=true:
# pods that ask for it are held back until their queue has room. Where it has --admission-conf,
# matchConditions has to go. Made by render.py.
"""
HEAD = """\
# What API servers ask before they store something, and where; webhook-deployment.yaml comes first.
# Whom to trust is filled in by `optsched webhook` itself. Made by render.py.
"""


def service() -> dict[str, object]:
    """What stands in front of the replicas."""
    port = {"name": "https", "port": PORT, "targetPort": "https"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE_NAME, "namespace": NAMESPACE},
        "spec": {"selector": {"app": "optsched-webhook"}, "ports": [port]},
    }


def render() -> str:
    """The manifest as YAML."""
    objects = [service(), *(configuration(SERVICE_OF[path]) for path in DEFAULT_PATHS)]
    return HEAD + yaml.safe_dump_all(objects, sort_keys=False, width=110)


def render_pods() -> str:
    """The same of what is asked about pods that want to be held back."""
    service = replace(SERVICE_OF["/pods/mutate"], condition=GATE_ASKED)
    return PODS_HEAD + yaml.safe_dump(configuration(service), sort_keys=False, width=110)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
    PODS_PATH.write_text(render_pods(), encoding="utf-8")
