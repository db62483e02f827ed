from __future__ import annotations

from optsched.admission.services import SERVICE_OF, SERVICES, configuration, configuration_ref


def test_names_are_volcanos():
    names = {configuration_ref(service).name for service in SERVICES}
    assert "volcano-admission-service-jobs-mutate" in names
    assert len(names) == len(SERVICES)
    assert configuration_ref(SERVICE_OF["/jobs/mutate"], "mine").name == "mine-jobs-mutate"


def test_a_configuration_asks_for_what_the_path_reviews():
    found = configuration(SERVICE_OF["/queues/validate"], "ns", "svc")
    (hook,) = found["webhooks"]
    assert found["kind"] == "ValidatingWebhookConfiguration"
    assert hook["clientConfig"]["service"] == {
        "namespace": "ns",
        "name": "svc",
        "path": "/queues/validate",
        "port": 443,
    }
    assert hook["rules"] == [
        {
            "apiGroups": ["scheduling.volcano.sh"],
            "apiVersions": ["v1beta1"],
            "resources": ["queues"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "scope": "Cluster",
        }
    ]
