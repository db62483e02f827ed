"""Pod templates that are refused, with each sentence, and such as are taken.

A real server judges the same templates in tests/e2e/test_pod_templates.py.
"""

# ruff: noqa: E501  sentences are kept whole
from __future__ import annotations

from typing import Any

from tests.admission.kit import container, template

GPU = "nvidia.com/gpu"
C = "t.spec.containers[0]"
V = "t.spec.volumes"
LABEL = "write at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
VALUE = (
    "write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or "
    "nothing"
)

HARD = "requiredDuringSchedulingIgnoredDuringExecution"
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"


def asks(requests: Any, limits: Any = None) -> Any:
    return template(container(resources={"requests": requests, "limits": limits}))


def mounted(mount: Any) -> Any:
    mounts = [{"name": "v", "mountPath": "/v", **mount}]
    return template(container(volumeMounts=mounts), volumes=[{"name": "v", "emptyDir": {}}])


def probed(name: str, probe: Any) -> Any:
    return template(container(**{name: probe}))


def secured(**context: Any) -> Any:
    return template(container(securityContext=context))


def volume(**source: Any) -> Any:
    return template(volumes=[{"name": "v", **source}])


def near(kind: str, terms: Any) -> Any:
    return template(affinity={kind: terms})


def spread(**parts: Any) -> Any:
    fine = {"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}
    return template(topologySpreadConstraints=[{**fine, **parts}])


def annotated(annotations: Any) -> Any:
    return {**template(), "metadata": {"annotations": annotations}}


REFUSED: list[tuple[Any, list[str]]] = [
    ({"spec": {}}, ["t.spec.containers: Required value: write at least one container"]),
    ({}, ["t.spec.containers: Required value: write at least one container"]),
    (template({"image": "i"}), [f"{C}.name: Required value: give each container a name"]),
    (template(container(name="C")), [f'{C}.name: Invalid value: "C": {LABEL}']),
    (
        template(container(), initContainers=[container()]),
        [f'{C}.name: Duplicate value: "c": give each a name of its own'],
    ),
    (template({"name": "c"}), [f"{C}.image: Required value: write the image that is run"]),
    (
        template(container(imagePullPolicy="Maybe")),
        [
            f'{C}.imagePullPolicy: Unsupported value: "Maybe": supported values: "Always", '
            '"IfNotPresent", "Never"'
        ],
    ),
    (
        template(restartPolicy="Sometimes"),
        [
            't.spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", '
            '"OnFailure", "Never"'
        ],
    ),
    (
        asks({GPU: 1}),
        [
            f"{C}.resources.limits: Required value: Limit must be set for non overcommitable "
            "resources: write limits[nvidia.com/gpu] as in requests"
        ],
    ),
    (
        asks({"hugepages-2Mi": "2Mi", "cpu": 1}),
        [
            f"{C}.resources.limits: Required value: Limit must be set for non overcommitable "
            "resources: write limits[hugepages-2Mi] as in requests"
        ],
    ),
    (
        asks({GPU: 1}, {GPU: 2}),
        [
            f"{C}.resources.requests[{GPU}]: Invalid value: 1: must be equal to nvidia.com/gpu limit "
            "of 2"
        ],
    ),
    (
        asks({"cpu": "2"}, {"cpu": "1500m"}),
        [
            f'{C}.resources.requests[cpu]: Invalid value: "2": must be less than or equal to cpu limit '
            "of 1500m"
        ],
    ),
    (
        asks({}, {GPU: "500m"}),
        [
            f'{C}.resources.limits[{GPU}]: Invalid value: "500m": must be an integer: nobody can have '
            "a part of nvidia.com/gpu"
        ],
    ),
    (
        asks({"memory": "-1Gi"}),
        [
            f'{C}.resources.requests[memory]: Invalid value: "-1Gi": must be greater than or equal to 0'
        ],
    ),
    (
        asks({"cpus": 1}),
        [
            f'{C}.resources.requests[cpus]: Invalid value: "cpus": no resource is called that: write '
            "cpu, memory, ephemeral-storage, hugepages-<size>, or a name of at most 63 letters, digits, "
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        asks({"cpu": "two"}),
        [
            f'{C}.resources.requests[cpu]: Invalid value: "two": is not a quantity: write a number '
            "with an optional suffix, such as 500m, 2, 1.5Gi or 1e3"
        ],
    ),
    (
        template(container(ports=[{"containerPort": 0}])),
        [f"{C}.ports[0].containerPort: Invalid value: 0: must be between 1 and 65535"],
    ),
    (
        template(container(ports=[{"name": "http"}])),
        [f"{C}.ports[0].containerPort: Required value: write 1 to 65535"],
    ),
    (
        template(container(ports=[{"containerPort": 1, "hostPort": 70000}])),
        [f"{C}.ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535"],
    ),
    (
        template(container(ports=[{"containerPort": 1, "protocol": "udp"}])),
        [
            f'{C}.ports[0].protocol: Unsupported value: "udp": supported values: "TCP", "UDP", "SCTP"'
        ],
    ),
    (
        template(container(ports=[{"containerPort": 1, "name": "tensorboard-port"}])),
        [
            f'{C}.ports[0].name: Invalid value: "tensorboard-port": write at most 15 lower-case '
            "letters, digits and single '-', at least one of them a letter"
        ],
    ),
    (
        template(container(ports=[{"containerPort": n, "name": "a"} for n in (1, 2)])),
        [f'{C}.ports[1].name: Duplicate value: "a": give each a name of its own'],
    ),
    (
        template(container(env=[{"value": "x"}])),
        [f"{C}.env[0].name: Required value: give each variable a name"],
    ),
    (
        template(container(env=[{"name": "a=b"}])),
        [f"{C}.env[0].name: Invalid value: \"a=b\": write printable ASCII characters without '='"],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "value": "x",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                    }
                ]
            )
        ),
        [f'{C}.env[0].valueFrom: Invalid value: "": may not be specified when value is set'],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "valueFrom": {
                            "fieldRef": {"fieldPath": "metadata.name"},
                            "secretKeyRef": {"name": "s", "key": "k"},
                        },
                    }
                ]
            )
        ),
        [f'{C}.env[0].valueFrom: Invalid value: "": keep one of the sources'],
    ),
    (
        template(container(env=[{"name": "A", "value": 5}])),
        [f"{C}.env[0].value: Invalid value: 5: is not a text: write it in quotes"],
    ),
    (
        template(container(volumeMounts=[{"name": "v", "mountPath": "/v"}])),
        [f'{C}.volumeMounts[0].name: Not found: "v": volumes of the pod are none'],
    ),
    (
        template(container(volumeMounts=[{"name": "v"}]), volumes=[{"name": "v"}]),
        [f"{C}.volumeMounts[0].mountPath: Required value: write where the volume is seen"],
    ),
    (
        template(
            container(volumeMounts=[{"name": "v", "mountPath": "/v"}] * 2), volumes=[{"name": "v"}]
        ),
        [f'{C}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique: a volume is there'],
    ),
    (template(volumes=[{}]), [f"{V}[0].name: Required value: give each volume a name"]),
    (template(volumes=[{"name": "V"}]), [f'{V}[0].name: Invalid value: "V": {LABEL}']),
    (
        template(volumes=[{"name": "v"}, {"name": "v"}]),
        [f'{V}[1].name: Duplicate value: "v": give each a name of its own'],
    ),
    (
        template(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        [
            f"{V}[0].hostPath: Forbidden: may not specify more than 1 volume type: keep emptyDir or "
            "hostPath"
        ],
    ),
    (
        {**template(), "metadata": {"labels": {"a b": "c"}}},
        [
            't.metadata.labels: Invalid value: "a b": write a name of at most 63 letters, digits, '
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        {**template(), "metadata": {"labels": {"a": "b c"}}},
        [f't.metadata.labels[a]: Invalid value: "b c": {VALUE}'],
    ),
    (
        {**template(), "metadata": {"labels": {"a": True}}},
        ["t.metadata.labels[a]: Invalid value: true: is not a text: write it in quotes"],
    ),
    (
        {**template(), "metadata": {"annotations": {"/a": ""}}},
        [
            't.metadata.annotations: Invalid value: "/a": write a name of at most 63 letters, digits, '
            "'-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and "
            "'/', such as example.com/my-name"
        ],
    ),
    (
        template(nodeSelector={"a": "b/c"}),
        [f't.spec.nodeSelector[a]: Invalid value: "b/c": {VALUE}'],
    ),
    (template(hostname="H"), [f't.spec.hostname: Invalid value: "H": {LABEL}']),
    (
        template(priorityClassName="P"),
        [
            't.spec.priorityClassName: Invalid value: "P": write at most 253 lower-case letters, '
            "digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(activeDeadlineSeconds=0),
        ["t.spec.activeDeadlineSeconds: Invalid value: 0: write 1 to 2147483647"],
    ),
    (
        template(hostNetwork="yes"),
        ['t.spec.hostNetwork: Invalid value: "yes": is not true or false'],
    ),
    (template(priority=1.5), ["t.spec.priority: Invalid value: 1.5: is not a whole number"]),
    (template(tolerations={}), ["t.spec.tolerations: Invalid value: {}: is not a list"]),
    (
        template(affinity=[]),
        ["t.spec.affinity: Invalid value: []: is not a mapping of field names to values"],
    ),
    (
        template(nodeSelector=[]),
        ["t.spec.nodeSelector: Invalid value: []: is not a mapping of names to values"],
    ),
    (
        template(container(image=" i")),
        ['t.spec.containers[0].image: Invalid value: " i": write it without spaces around it'],
    ),
    (
        template(container(terminationMessagePolicy="Logs")),
        [
            't.spec.containers[0].terminationMessagePolicy: Unsupported value: "Logs": supported values: "File", "FallbackToLogsOnError"'
        ],
    ),
    (
        template(container(ports=[{"containerPort": 70000}])),
        [
            "t.spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535"
        ],
    ),
    (
        template(
            container(ports=[{"containerPort": 80}]),
            hostNetwork=True,
            initContainers=[],
            dnsPolicy="Nearby",
        ),
        [
            't.spec.dnsPolicy: Unsupported value: "Nearby": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"'
        ],
    ),
    (
        template(container(ports=[{"containerPort": 80, "hostPort": 81}]), hostNetwork=True),
        [
            "t.spec.containers[0].ports[0].hostPort: Invalid value: 81: must match containerPort when hostNetwork is true: write 80"
        ],
    ),
    (
        template(
            container(
                ports=[{"containerPort": 1, "hostPort": 8}, {"containerPort": 2, "hostPort": 8}]
            )
        ),
        [
            "t.spec.containers[0].ports[1].hostPort: Duplicate value: 8: another port of the pod takes it on the node"
        ],
    ),
    (
        template(
            container(ports=[{"containerPort": 8}]),
            {**container(ports=[{"containerPort": 8}]), "name": "d"},
            hostNetwork=True,
        ),
        [
            "t.spec.containers[1].ports[0].hostPort: Duplicate value: 8: another port of the pod takes it on the node"
        ],
    ),
    (
        template(container(env=[{"name": "A", "valueFrom": {}}])),
        [
            "t.spec.containers[0].env[0].valueFrom: Invalid value: {}: write one of configMapKeyRef, fieldRef, fileKeyRef, resourceFieldRef, secretKeyRef"
        ],
    ),
    (
        template(
            container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.image"}}}])
        ),
        [
            "t.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.image\": write one of metadata.name, metadata.namespace, metadata.uid, spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, status.podIP, status.podIPs, metadata.labels['<name>'] or metadata.annotations['<name>']"
        ],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a b']"}},
                    }
                ]
            )
        ),
        [
            "t.spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.labels['a b']\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "valueFrom": {
                            "fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}
                        },
                    }
                ]
            )
        ),
        [
            't.spec.containers[0].env[0].valueFrom.fieldRef.apiVersion: Invalid value: "v2": write v1'
        ],
    ),
    (
        template(
            container(
                env=[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]
            )
        ),
        [
            't.spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Invalid value: "limits.gpu": write one of limits.cpu, limits.memory, limits.ephemeral-storage, requests.cpu, requests.memory, requests.ephemeral-storage'
        ],
    ),
    (
        template(
            container(
                env=[
                    {
                        "name": "A",
                        "valueFrom": {
                            "resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}
                        },
                    }
                ]
            )
        ),
        [
            't.spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "2": write 1m or 1'
        ],
    ),
    (
        template(
            container(
                env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "a/b"}}}]
            )
        ),
        [
            "t.spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Invalid value: \"a/b\": write letters, digits, '-', '_' and '.'"
        ],
    ),
    (
        template(
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "S", "key": "k"}}}])
        ),
        [
            "t.spec.containers[0].env[0].valueFrom.secretKeyRef.name: Invalid value: \"S\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(container(envFrom=[{"prefix": "P_"}])),
        [
            't.spec.containers[0].envFrom[0]: Invalid value: {"prefix": "P_"}: write configMapRef or secretRef'
        ],
    ),
    (
        template(container(envFrom=[{"configMapRef": {"name": "m"}, "secretRef": {"name": "s"}}])),
        [
            't.spec.containers[0].envFrom[0]: Invalid value: "": keep one of configMapRef and secretRef'
        ],
    ),
    (
        template(container(envFrom=[{"configMapRef": {}}])),
        [
            "t.spec.containers[0].envFrom[0].configMapRef.name: Required value: write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(container(envFrom=[{"prefix": "a=", "secretRef": {"name": "s"}}])),
        [
            "t.spec.containers[0].envFrom[0].prefix: Invalid value: \"a=\": write printable ASCII characters without '='"
        ],
    ),
    (
        mounted({"subPath": "/abs"}),
        [
            "t.spec.containers[0].volumeMounts[0].subPath: Invalid value: \"/abs\": must be a relative path: leave out the first '/'"
        ],
    ),
    (
        mounted({"subPath": "a/../b"}),
        [
            "t.spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'"
        ],
    ),
    (
        mounted({"subPath": "a", "subPathExpr": "b"}),
        [
            't.spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "b": subPathExpr and subPath are mutually exclusive: keep one'
        ],
    ),
    (
        mounted({"mountPropagation": "Shared"}),
        [
            't.spec.containers[0].volumeMounts[0].mountPropagation: Unsupported value: "Shared": supported values: "None", "HostToContainer", "Bidirectional"'
        ],
    ),
    (
        mounted({"mountPropagation": "Bidirectional"}),
        [
            "t.spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional is available only to privileged containers"
        ],
    ),
    (
        mounted({"recursiveReadOnly": "Enabled"}),
        [
            "t.spec.containers[0].volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true"
        ],
    ),
    (
        mounted({"recursiveReadOnly": "Maybe"}),
        [
            't.spec.containers[0].volumeMounts[0].recursiveReadOnly: Unsupported value: "Maybe": supported values: "Disabled", "Enabled", "IfPossible"'
        ],
    ),
    (
        template(
            container(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}]),
            volumes=[{"name": "v", "emptyDir": {}}],
        ),
        [
            't.spec.containers[0].volumeDevices[0].name: Invalid value: "v": is a volume of emptyDir: only persistentVolumeClaim and ephemeral are devices'
        ],
    ),
    (
        template(
            container(volumeDevices=[{"name": "v"}]),
            volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        ),
        [
            "t.spec.containers[0].volumeDevices[0].devicePath: Required value: write where the device is seen"
        ],
    ),
    (
        template(container(volumeDevices=[{"name": "w", "devicePath": "/dev/x"}])),
        ['t.spec.containers[0].volumeDevices[0].name: Not found: "w": volumes of the pod are none'],
    ),
    (
        probed("livenessProbe", {}),
        [
            "t.spec.containers[0].livenessProbe: Required value: must specify a handler type: write one of exec, httpGet, tcpSocket, grpc"
        ],
    ),
    (
        probed("livenessProbe", {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
        [
            "t.spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type: keep exec or tcpSocket"
        ],
    ),
    (
        probed("livenessProbe", {"exec": {}}),
        [
            "t.spec.containers[0].livenessProbe.exec.command: Required value: write the command that is run"
        ],
    ),
    (
        probed("livenessProbe", {"httpGet": {"port": 0}}),
        [
            "t.spec.containers[0].livenessProbe.httpGet.port: Required value: write 1 to 65535 or the name of a port"
        ],
    ),
    (
        probed("livenessProbe", {"httpGet": {"port": 70000}}),
        ["t.spec.containers[0].livenessProbe.httpGet.port: Invalid value: 70000: write 1 to 65535"],
    ),
    (
        probed("livenessProbe", {"httpGet": {"port": "a--b"}}),
        [
            "t.spec.containers[0].livenessProbe.httpGet.port: Invalid value: \"a--b\": write at most 15 lower-case letters, digits and single '-', at least one of them a letter, or a number from 1 to 65535"
        ],
    ),
    (
        probed("livenessProbe", {"httpGet": {"port": 1, "scheme": "FTP"}}),
        [
            't.spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: "FTP": supported values: "HTTP", "HTTPS"'
        ],
    ),
    (
        probed("livenessProbe", {"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}),
        [
            "t.spec.containers[0].livenessProbe.httpGet.httpHeaders[0].name: Invalid value: \"a b\": write letters, digits and '-', such as X-Header-Name"
        ],
    ),
    (
        probed("livenessProbe", {"tcpSocket": {"port": True}}),
        [
            "t.spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: true: is neither a port nor the name of one: write 1 to 65535, or a name"
        ],
    ),
    (
        probed("livenessProbe", {"grpc": {"port": 0}}),
        ["t.spec.containers[0].livenessProbe.grpc.port: Required value: write 1 to 65535"],
    ),
    (
        probed("livenessProbe", {"tcpSocket": {"port": 1}, "periodSeconds": -1}),
        ["t.spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: write 0 or more"],
    ),
    (
        probed("livenessProbe", {"tcpSocket": {"port": 1}, "successThreshold": 2}),
        [
            "t.spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1 for a livenessProbe"
        ],
    ),
    (
        probed("livenessProbe", {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 0}),
        [
            "t.spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: write 1 or more"
        ],
    ),
    (
        probed("readinessProbe", {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 5}),
        [
            "t.spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes: leave it out"
        ],
    ),
    (
        probed("startupProbe", {"tcpSocket": {"port": 1}, "failureThreshold": -3}),
        ["t.spec.containers[0].startupProbe.failureThreshold: Invalid value: -3: write 0 or more"],
    ),
    (
        probed("lifecycle", {"preStop": {}}),
        [
            "t.spec.containers[0].lifecycle.preStop: Required value: must specify a handler type: write one of exec, httpGet, tcpSocket, sleep"
        ],
    ),
    (
        probed("lifecycle", {"postStart": {"sleep": {"seconds": 31}}}),
        [
            "t.spec.containers[0].lifecycle.postStart.sleep.seconds: Invalid value: 31: write 0 to 30, which is terminationGracePeriodSeconds of the pod"
        ],
    ),
    (
        probed("lifecycle", {"preStop": {"sleep": {"seconds": 5}, "exec": {"command": ["a"]}}}),
        [
            "t.spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type: keep exec or sleep"
        ],
    ),
    (
        template(
            initContainers=[
                container(name="i", lifecycle={"preStop": {"exec": {"command": ["a"]}}})
            ]
        ),
        [
            "t.spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy Always: leave it out"
        ],
    ),
    (
        template(initContainers=[container(name="i", readinessProbe={"exec": {"command": ["a"]}})]),
        [
            "t.spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy Always: leave it out"
        ],
    ),
    (
        template(container(restartPolicy="Sometimes")),
        [
            't.spec.containers[0].restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'
        ],
    ),
    (
        template(
            container(
                restartPolicyRules=[
                    {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}
                ]
            )
        ),
        [
            "t.spec.containers[0].restartPolicy: Required value: restartPolicyRules need one: write Never or OnFailure"
        ],
    ),
    (
        template(
            container(
                restartPolicy="Never",
                restartPolicyRules=[{"action": "Stop", "exitCodes": {"operator": "Is"}}],
            )
        ),
        [
            't.spec.containers[0].restartPolicyRules[0].action: Unsupported value: "Stop": supported values: "Restart", "RestartAllContainers"',
            't.spec.containers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: "Is": supported values: "In", "NotIn"',
        ],
    ),
    (
        template(container(resizePolicy=[{"resourceName": "gpu", "restartPolicy": "NotRequired"}])),
        [
            't.spec.containers[0].resizePolicy[0].resourceName: Unsupported value: "gpu": supported values: "cpu", "memory"'
        ],
    ),
    (
        template(
            container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]),
            restartPolicy="Never",
        ),
        [
            't.spec.containers[0].resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must be NotRequired when restartPolicy is Never'
        ],
    ),
    (
        template(
            container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2)
        ),
        [
            't.spec.containers[0].resizePolicy[1].resourceName: Duplicate value: "cpu": say it once for each resource'
        ],
    ),
    (
        secured(runAsUser=-1),
        [
            "t.spec.containers[0].securityContext.runAsUser: Invalid value: -1: write 0 to 2147483647"
        ],
    ),
    (
        secured(runAsGroup=2147483648),
        [
            "t.spec.containers[0].securityContext.runAsGroup: Invalid value: 2147483648: write 0 to 2147483647"
        ],
    ),
    (
        secured(procMount="Wide"),
        [
            't.spec.containers[0].securityContext.procMount: Unsupported value: "Wide": supported values: "Default", "Unmasked"'
        ],
    ),
    (
        secured(procMount="Unmasked"),
        [
            't.spec.containers[0].securityContext.procMount: Invalid value: "Unmasked": needs hostUsers: false in the pod; or write Default'
        ],
    ),
    (
        secured(allowPrivilegeEscalation=False, capabilities={"add": ["CAP_SYS_ADMIN"]}),
        [
            "t.spec.containers[0].securityContext.allowPrivilegeEscalation: Invalid value: false: cannot be false while capabilities.add has CAP_SYS_ADMIN: change one"
        ],
    ),
    (
        secured(seccompProfile={"type": "Localhost"}),
        [
            "t.spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: write the profile that type Localhost names"
        ],
    ),
    (
        secured(seccompProfile={"type": "Strict"}),
        [
            't.spec.containers[0].securityContext.seccompProfile.type: Unsupported value: "Strict": supported values: "Localhost", "RuntimeDefault", "Unconfined"'
        ],
    ),
    (
        secured(seccompProfile={"type": "Localhost", "localhostProfile": "/etc/p"}),
        [
            "t.spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"/etc/p\": must be a relative path: leave out the first '/'"
        ],
    ),
    (
        secured(appArmorProfile={"type": "RuntimeDefault", "localhostProfile": "p"}),
        [
            't.spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: "p": can only be set when type is Localhost'
        ],
    ),
    (
        template(securityContext={"fsGroup": -2}),
        ["t.spec.securityContext.fsGroup: Invalid value: -2: write 0 to 2147483647"],
    ),
    (
        template(securityContext={"supplementalGroups": [0, -1]}),
        ["t.spec.securityContext.supplementalGroups[1]: Invalid value: -1: write 0 to 2147483647"],
    ),
    (
        template(securityContext={"fsGroupChangePolicy": "Often"}),
        [
            't.spec.securityContext.fsGroupChangePolicy: Unsupported value: "Often": supported values: "Always", "OnRootMismatch"'
        ],
    ),
    (
        template(securityContext={"supplementalGroupsPolicy": "Loose"}),
        [
            't.spec.securityContext.supplementalGroupsPolicy: Unsupported value: "Loose": supported values: "Merge", "Strict"'
        ],
    ),
    (
        template(securityContext={"sysctls": [{"name": "net..core", "value": "1"}]}),
        [
            't.spec.securityContext.sysctls[0].name: Invalid value: "net..core": write at most 253 characters such as net.core.somaxconn'
        ],
    ),
    (
        template(
            securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}] * 2}
        ),
        [
            't.spec.securityContext.sysctls[1].name: Duplicate value: "kernel.shm_rmid_forced": name it once'
        ],
    ),
    (
        template(hostPID=True, shareProcessNamespace=True),
        [
            "t.spec.shareProcessNamespace: Invalid value: true: cannot be true together with hostPID: keep one"
        ],
    ),
    (
        template(hostPID=True, hostUsers=False),
        ["t.spec.hostPID: Forbidden: may not be true when hostUsers is false"],
    ),
    (
        volume(emptyDir={"sizeLimit": "-1Gi"}),
        [
            't.spec.volumes[0].emptyDir.sizeLimit: Invalid value: "-1Gi": write an amount of zero or more'
        ],
    ),
    (
        volume(hostPath={}),
        ["t.spec.volumes[0].hostPath.path: Required value: a volume of hostPath needs it"],
    ),
    (
        volume(hostPath={"path": "/a/../b"}),
        ["t.spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
    ),
    (
        volume(hostPath={"path": "/a", "type": "Dir"}),
        [
            't.spec.volumes[0].hostPath.type: Unsupported value: "Dir": supported values: "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"'
        ],
    ),
    (
        volume(configMap={}),
        ["t.spec.volumes[0].configMap.name: Required value: a volume of configMap needs it"],
    ),
    (
        volume(configMap={"name": "m", "defaultMode": 1000}),
        [
            "t.spec.volumes[0].configMap.defaultMode: Invalid value: 1000: write 0 to 511 (0777 in octal, which JSON cannot hold)"
        ],
    ),
    (
        volume(configMap={"name": "m", "items": [{"key": "k", "path": "../x"}]}),
        [
            "t.spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'"
        ],
    ),
    (
        volume(configMap={"name": "m", "items": [{"path": "x"}]}),
        ["t.spec.volumes[0].configMap.items[0].key: Required value: write which key is shown"],
    ),
    (
        volume(secret={"secretName": "s", "items": [{"key": "k", "path": "..x", "mode": -1}]}),
        [
            "t.spec.volumes[0].secret.items[0].path: Invalid value: \"..x\": must not start with '..'",
            "t.spec.volumes[0].secret.items[0].mode: Invalid value: -1: write 0 to 511 (0777 in octal, which JSON cannot hold)",
        ],
    ),
    (
        volume(secret={"name": "s"}),
        ["t.spec.volumes[0].secret.secretName: Required value: a volume of secret needs it"],
    ),
    (
        volume(persistentVolumeClaim={}),
        [
            "t.spec.volumes[0].persistentVolumeClaim.claimName: Required value: a volume of persistentVolumeClaim needs it"
        ],
    ),
    (
        volume(nfs={"server": "h", "path": "exports"}),
        [
            "t.spec.volumes[0].nfs.path: Invalid value: \"exports\": must be an absolute path: begin it with '/'"
        ],
    ),
    (
        volume(nfs={"path": "/exports"}),
        ["t.spec.volumes[0].nfs.server: Required value: a volume of nfs needs it"],
    ),
    (
        volume(csi={"driver": "a_b"}),
        [
            "t.spec.volumes[0].csi.driver: Invalid value: \"a_b\": write at most 63 letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (volume(csi={}), ["t.spec.volumes[0].csi.driver: Required value: a volume of csi needs it"]),
    (
        volume(iscsi={"targetPortal": "10.0.0.1:3260"}),
        ["t.spec.volumes[0].iscsi.iqn: Required value: a volume of iscsi needs it"],
    ),
    (
        volume(ephemeral={}),
        [
            "t.spec.volumes[0].ephemeral.volumeClaimTemplate: Required value: a volume of ephemeral needs it"
        ],
    ),
    (
        volume(ephemeral={"volumeClaimTemplate": {"spec": {}}}),
        [
            "t.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: Required value: write at least one of ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod",
            "t.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: Required value: write how much is needed, such as 10Gi",
        ],
    ),
    (
        volume(
            ephemeral={
                "volumeClaimTemplate": {
                    "spec": {
                        "accessModes": ["ReadWrite"],
                        "resources": {"requests": {"storage": "0"}},
                    }
                }
            }
        ),
        [
            't.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes[0]: Invalid value: "ReadWrite": write one of ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod',
            't.spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: Invalid value: "0": must be greater than zero, such as 10Gi',
        ],
    ),
    (
        volume(downwardAPI={"items": [{"path": "p"}]}),
        [
            "t.spec.volumes[0].downwardAPI.items[0]: Required value: write one of fieldRef and resourceFieldRef"
        ],
    ),
    (
        volume(downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}),
        [
            "t.spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Invalid value: \"status.podIP\": write one of metadata.annotations, metadata.labels, metadata.name, metadata.namespace, metadata.uid, metadata.labels['<name>'] or metadata.annotations['<name>']"
        ],
    ),
    (
        volume(
            downwardAPI={"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}
        ),
        [
            "t.spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: Required value: write of which container"
        ],
    ),
    (
        volume(projected={"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]}),
        [
            "t.spec.volumes[0].projected.sources[0].secret: Forbidden: may not specify more than 1 volume type: keep configMap or secret"
        ],
    ),
    (
        volume(projected={"sources": [{"secret": {}}]}),
        [
            "t.spec.volumes[0].projected.sources[0].secret.name: Required value: a projection of a secret needs it"
        ],
    ),
    (
        volume(
            projected={
                "sources": [
                    {"secret": {"name": s, "items": [{"key": "k", "path": "p"}]}}
                    for s in ("a", "b")
                ]
            }
        ),
        [
            't.spec.volumes[0].projected.sources[1].secret.items[0].path: Duplicate value: "p": give each file a path of its own'
        ],
    ),
    (
        volume(
            projected={"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 10}}]}
        ),
        [
            "t.spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 10: write 600 to 4294967296"
        ],
    ),
    (
        asks({}, {"requests.example.com/a": 1}),
        [
            "t.spec.containers[0].resources.limits[requests.example.com/a]: Invalid value: \"requests.example.com/a\": no resource is called that: write cpu, memory, ephemeral-storage, hugepages-<size>, or a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        asks({}, {"storage": "1Gi"}),
        [
            "t.spec.containers[0].resources.limits[storage]: Invalid value: \"storage\": no resource is called that: write cpu, memory, ephemeral-storage, hugepages-<size>, or a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        asks({}, {"hugepages-2Mi": "3Mi", "cpu": 1}),
        [
            't.spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": must be a whole number of pages of 2Mi'
        ],
    ),
    (
        template(container(), resources={"requests": {GPU: 1}}),
        [
            't.spec.resources.requests[nvidia.com/gpu]: Invalid value: "nvidia.com/gpu": write cpu, memory or hugepages-<size>'
        ],
    ),
    (
        template(container(resources={"requests": {"cpu": 2}}), resources={"requests": {"cpu": 1}}),
        [
            "t.spec.resources.requests[cpu]: Invalid value: 1: must be greater than or equal to what the containers ask for together"
        ],
    ),
    (
        template(
            container(resources={"limits": {"memory": "2Gi"}}),
            resources={"limits": {"memory": "1Gi"}},
        ),
        [
            't.spec.resources.limits[memory]: Invalid value: "1Gi": must be greater than or equal to what the containers ask for together',
            't.spec.containers[0].resources.limits[memory]: Invalid value: "2Gi": must be at most 1Gi, as the pod',
        ],
    ),
    (
        template(tolerations=[{"key": "a b", "operator": "Exists"}]),
        [
            "t.spec.tolerations[0].key: Invalid value: \"a b\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        template(tolerations=[{"operator": "Equal", "value": "x"}]),
        [
            't.spec.tolerations[0].operator: Invalid value: "Equal": must be Exists when key is empty: write a key or Exists'
        ],
    ),
    (
        template(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
        [
            't.spec.tolerations[0].value: Invalid value: "x": must be empty when operator is Exists: leave it out'
        ],
    ),
    (
        template(tolerations=[{"key": "a", "operator": "In", "value": "x"}]),
        [
            't.spec.tolerations[0].operator: Unsupported value: "In": supported values: "Equal", "Exists", "Lt", "Gt"'
        ],
    ),
    (
        template(tolerations=[{"key": "a", "value": "x y"}]),
        [
            "t.spec.tolerations[0].value: Invalid value: \"x y\": write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or nothing"
        ],
    ),
    (
        template(tolerations=[{"key": "a", "effect": "NoRun"}]),
        [
            't.spec.tolerations[0].effect: Unsupported value: "NoRun": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'
        ],
    ),
    (
        template(tolerations=[{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]),
        [
            "t.spec.tolerations[0].effect: Invalid value: null: must be NoExecute when tolerationSeconds is set"
        ],
    ),
    (
        template(nodeSelector={"a b": "c"}),
        [
            "t.spec.nodeSelector: Invalid value: \"a b\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        near("nodeAffinity", {HARD: {}}),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Is", "values": ["x"]}]}
                    ]
                }
            },
        ),
        [
            't.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"'
        ],
    ),
    (
        near(
            "nodeAffinity",
            {HARD: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}},
        ),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: operator In needs at least one value"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}
                    ]
                }
            },
        ),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Forbidden: operator Exists takes none: leave them out"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}
                    ]
                }
            },
        ),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value: operator Gt needs exactly one value"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x y"]}]}
                    ]
                }
            },
        ),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: \"x y\": write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or nothing"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "/a", "operator": "Exists"}]}
                    ]
                }
            },
        ),
        [
            "t.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: Invalid value: \"/a\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.uid", "operator": "In", "values": ["x"]}
                            ]
                        }
                    ]
                }
            },
        ),
        [
            't.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key: Unsupported value: "metadata.uid": supported values: "metadata.name"'
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                HARD: {
                    "nodeSelectorTerms": [
                        {
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["x", "y"]}
                            ]
                        }
                    ]
                }
            },
        ),
        [
            't.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].values: Invalid value: ["x", "y"]: write the name of one node'
        ],
    ),
    (
        near(
            "nodeAffinity",
            {
                SOFT: [
                    {
                        "weight": 0,
                        "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                    }
                ]
            },
        ),
        [
            "t.spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: write 1 to 100"
        ],
    ),
    (
        near("podAffinity", {HARD: [{"labelSelector": {"matchLabels": {"a": "b"}}}]}),
        [
            "t.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        near("podAffinity", {HARD: [{"topologyKey": "a b"}]}),
        [
            "t.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"a b\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        near(
            "podAffinity",
            {
                HARD: [
                    {
                        "topologyKey": "k",
                        "labelSelector": {
                            "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]
                        },
                    }
                ]
            },
        ),
        [
            't.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector.matchExpressions[0].operator: Unsupported value: "Gt": supported values: "In", "NotIn", "Exists", "DoesNotExist"'
        ],
    ),
    (
        near("podAffinity", {HARD: [{"topologyKey": "k", "namespaces": ["A"]}]}),
        [
            "t.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[0]: Invalid value: \"A\": write at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
        ],
    ),
    (
        near("podAntiAffinity", {SOFT: [{"weight": 101, "podAffinityTerm": {"topologyKey": "k"}}]}),
        [
            "t.spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: write 1 to 100"
        ],
    ),
    (
        near("podAntiAffinity", {SOFT: [{"weight": 1}]}),
        [
            "t.spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm: Required value: write which pods are meant, and its topologyKey"
        ],
    ),
    (
        near("podAntiAffinity", {HARD: [{"topologyKey": "k", "matchLabelKeys": ["a"]}]}),
        [
            "t.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"
        ],
    ),
    (
        spread(maxSkew=0),
        [
            "t.spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero: write 1 or more"
        ],
    ),
    (
        spread(topologyKey=""),
        [
            "t.spec.topologySpreadConstraints[0].topologyKey: Required value: write a label of nodes such as kubernetes.io/hostname"
        ],
    ),
    (
        spread(whenUnsatisfiable="Never"),
        [
            't.spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Never": supported values: "DoNotSchedule", "ScheduleAnyway"'
        ],
    ),
    (
        spread(minDomains=0),
        ["t.spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: write 1 or more"],
    ),
    (
        spread(minDomains=1, whenUnsatisfiable="ScheduleAnyway"),
        [
            "t.spec.topologySpreadConstraints[0].minDomains: Invalid value: 1: can only be set if whenUnsatisfiable is DoNotSchedule"
        ],
    ),
    (
        spread(nodeTaintsPolicy="Respect"),
        [
            't.spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: "Respect": supported values: "Honor", "Ignore"'
        ],
    ),
    (
        spread(labelSelector={"matchLabels": {"a": "b c"}}),
        [
            "t.spec.topologySpreadConstraints[0].labelSelector.matchLabels[a]: Invalid value: \"b c\": write at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or nothing"
        ],
    ),
    (
        template(
            topologySpreadConstraints=[
                {"maxSkew": n, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"}
                for n in (1, 2)
            ]
        ),
        [
            't.spec.topologySpreadConstraints[1].topologyKey: Duplicate value: "k": one constraint with DoNotSchedule is enough for each key'
        ],
    ),
    (
        template(dnsPolicy="None"),
        ["t.spec.dnsConfig.nameservers: Required value: dnsPolicy None needs at least one"],
    ),
    (
        template(dnsConfig={"nameservers": ["1.1.1.1"] * 4}),
        [
            't.spec.dnsConfig.nameservers: Invalid value: ["1.1.1.1", "1.1.1.1", "1.1.1.1", "1.1.1.1"]: write at most 3'
        ],
    ),
    (
        template(dnsConfig={"nameservers": ["host"]}),
        [
            't.spec.dnsConfig.nameservers[0]: Invalid value: "host": write an IP address such as 10.0.0.1 or fd00::1'
        ],
    ),
    (
        template(dnsConfig={"searches": ["a b"]}),
        [
            "t.spec.dnsConfig.searches[0]: Invalid value: \"a b\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(dnsConfig={"options": [{"value": "5"}]}),
        [
            "t.spec.dnsConfig.options[0].name: Required value: write an option of resolv.conf such as ndots"
        ],
    ),
    (
        template(hostAliases=[{"ip": "300.0.0.1", "hostnames": ["a"]}]),
        [
            't.spec.hostAliases[0].ip: Invalid value: "300.0.0.1": write an IP address such as 10.0.0.1 or fd00::1'
        ],
    ),
    (
        template(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["A"]}]),
        [
            "t.spec.hostAliases[0].hostnames[0]: Invalid value: \"A\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(activeDeadlineSeconds=2147483648),
        ["t.spec.activeDeadlineSeconds: Invalid value: 2147483648: write 1 to 2147483647"],
    ),
    (
        template(schedulingGates=[{"name": "a/b/c"}]),
        [
            "t.spec.schedulingGates[0].name: Invalid value: \"a/b/c\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        template(schedulingGates=[{"name": "a"}, {"name": "a"}]),
        ['t.spec.schedulingGates[1].name: Duplicate value: "a": name each gate once'],
    ),
    (
        template(readinessGates=[{"conditionType": "a b"}]),
        [
            "t.spec.readinessGates[0].conditionType: Invalid value: \"a b\": write a name of at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, after an optional DNS name and '/', such as example.com/my-name"
        ],
    ),
    (
        template(ephemeralContainers=[container(name="e")]),
        ["t.spec.ephemeralContainers: Forbidden: not allowed in pod templates: leave them out"],
    ),
    (
        template(os={"name": "beos"}),
        ['t.spec.os.name: Unsupported value: "beos": supported values: "linux", "windows"'],
    ),
    (
        template(hostname="h", hostnameOverride="H"),
        [
            "t.spec.hostnameOverride: Invalid value: \"H\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends, 64 here"
        ],
    ),
    (
        template(subdomain="a.b"),
        [
            "t.spec.subdomain: Invalid value: \"a.b\": write at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
        ],
    ),
    (
        template(preemptionPolicy="Maybe"),
        [
            't.spec.preemptionPolicy: Unsupported value: "Maybe": supported values: "PreemptLowerPriority", "Never"'
        ],
    ),
    (
        {"spec": {"containers": [None]}},
        [
            "t.spec.containers[0].name: Required value: give each container a name",
            "t.spec.containers[0].image: Required value: write the image that is run",
        ],
    ),
    (
        template(priority=2**31),
        [
            "t.spec.priority: Invalid value: 2147483648: is out of range: write -2147483648 to 2147483647"
        ],
    ),
    (
        template(container(ports=[{"containerPort": 2**40}])),
        [
            "t.spec.containers[0].ports[0].containerPort: Invalid value: 1099511627776: is out of range: write -2147483648 to 2147483647"
        ],
    ),
    (
        annotated({"controller.kubernetes.io/pod-deletion-cost": "high"}),
        [
            't.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "high": must be a 32bit integer: write one such as -1 or 100'
        ],
    ),
    (
        annotated({"a": "x" * 2**18}),
        ["t.metadata.annotations: Forbidden: have 262145 bytes: write at most 262144"],
    ),
    (
        template(serviceAccount="S"),
        [
            "t.spec.serviceAccount: Invalid value: \"S\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(runtimeClassName=""),
        ['t.spec.runtimeClassName: Invalid value: "": name a RuntimeClass, or leave it out'],
    ),
    (
        template(overhead={"cpu": "-1"}),
        ['t.spec.overhead[cpu]: Invalid value: "-1": must be greater than or equal to 0'],
    ),
    (
        template(nodeName="n", schedulingGates=[{"name": "a"}]),
        [
            "t.spec.nodeName: Forbidden: cannot be set together with schedulingGates: keep one of them"
        ],
    ),
    (
        template(resourceClaims=[{"name": "gpus"}]),
        [
            "t.spec.resourceClaims[0]: Invalid value: none: write resourceClaimName or resourceClaimTemplateName"
        ],
    ),
    (
        template(
            resourceClaims=[
                {"name": "gpus", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}
            ]
        ),
        [
            "t.spec.resourceClaims[0]: Invalid value: resourceClaimName and resourceClaimTemplateName: write resourceClaimName or resourceClaimTemplateName"
        ],
    ),
    (
        template(container(resources={"claims": [{"name": "gpus"}]})),
        [
            't.spec.containers[0].resources.claims[0].name: Not found: "gpus": resourceClaims of the pod are none'
        ],
    ),
    (
        template(
            container(resources={"claims": [{"name": "g"}, {"name": "g"}]}),
            resourceClaims=[{"name": "g", "resourceClaimName": "a"}],
        ),
        [
            't.spec.containers[0].resources.claims[1].name: Duplicate value: "g": use each claim, or each of its requests, once'
        ],
    ),
    (
        template(container(envFrom=[{"secretRef": {"name": "-"}}])),
        [
            "t.spec.containers[0].envFrom[0].secretRef.name: Invalid value: \"-\": write at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
        ],
    ),
    (
        template(container(), resources={"limits": {"hugepages-2Mi": "2Mi"}}),
        ["t.spec.resources: Forbidden: HugePages require cpu or memory: ask for one of them too"],
    ),
    (
        template(container(resources={"requests": {"cpu": 2}}), resources={"limits": {"cpu": 1}}),
        [
            "t.spec.resources.limits[cpu]: Invalid value: 1: must be greater than or equal to what the containers ask for together"
        ],
    ),
    (
        template(
            container(resources={"requests": {"cpu": 2}}),
            resources={"requests": {"hugepages-2Mi": "2Mi"}},
        ),
        [
            "t.spec.resources.limits: Required value: Limit must be set for non overcommitable resources: write limits[hugepages-2Mi] as in requests",
            "t.spec.resources: Forbidden: HugePages require cpu or memory: ask for one of them too",
        ],
    ),
]

TAKEN: list[Any] = [
    template(terminationGracePeriodSeconds=-1),
    template(container(image="registry:5000/a/b@sha256:0")),
    template(container(ports=[{"containerPort": 80, "hostPort": 80}]), hostNetwork=True),
    template(
        container(
            ports=[
                {"containerPort": 8, "hostPort": 8},
                {"containerPort": 8, "hostPort": 8, "protocol": "UDP"},
            ]
        )
    ),
    template(
        container(
            ports=[
                {"containerPort": 8, "hostPort": 8, "hostIP": ip} for ip in ("10.0.0.1", "10.0.0.2")
            ]
        )
    ),
    template(container(ports=[{"containerPort": 8}, {"containerPort": 8}])),
    template(container(ports=[{"containerPort": 8, "hostPort": 0, "name": "", "protocol": ""}])),
    template(
        container(ports=[{"containerPort": 8, "hostPort": 8}]),
        initContainers=[container(name="i", ports=[{"containerPort": 8, "hostPort": 8}])],
    ),
    template(container(env=[{"name": "1 a.b-c%", "value": None}, {"name": "1 a.b-c%"}])),
    template(
        container(
            env=[
                {
                    "name": "A",
                    "value": "",
                    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['A.b/c']"}},
                }
            ]
        )
    ),
    template(container(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.host"}}}])),
    template(
        container(
            env=[
                {
                    "name": "A",
                    "valueFrom": {
                        "resourceFieldRef": {"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}
                    },
                }
            ]
        )
    ),
    template(
        container(
            env=[
                {
                    "name": "A",
                    "valueFrom": {
                        "resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}
                    },
                }
            ]
        )
    ),
    template(
        container(
            env=[
                {
                    "name": "A",
                    "valueFrom": {"secretKeyRef": {"name": "s.t", "key": ".k", "optional": True}},
                }
            ]
        )
    ),
    template(container(envFrom=[{"prefix": "1 ", "configMapRef": {"name": "m-"}}])),
    mounted({"subPath": "a/b..c"}),
    mounted({"subPathExpr": "$(POD)/x", "mountPropagation": "HostToContainer"}),
    mounted({"recursiveReadOnly": "Enabled", "readOnly": True}),
    mounted({"mountPath": "relative:path"}),
    template(
        container(volumeDevices=[{"name": "v", "devicePath": "/dev/x"}]),
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    ),
    probed(
        "livenessProbe",
        {
            "httpGet": {"port": 80, "path": "", "scheme": ""},
            "periodSeconds": 0,
            "terminationGracePeriodSeconds": 1,
        },
    ),
    probed("readinessProbe", {"tcpSocket": {"port": "http"}, "successThreshold": 3}),
    probed("startupProbe", {"grpc": {"port": 9, "service": "s"}, "timeoutSeconds": 0}),
    probed(
        "lifecycle",
        {"preStop": {"sleep": {"seconds": 30}}, "postStart": {"exec": {"command": ["a"]}}},
    ),
    probed("lifecycle", {}),
    template(
        initContainers=[
            container(name="i", restartPolicy="Always", readinessProbe={"exec": {"command": ["a"]}})
        ]
    ),
    template(
        container(
            restartPolicy="Never",
            restartPolicyRules=[
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
            ],
        )
    ),
    template(
        container(
            resizePolicy=[
                {"resourceName": r, "restartPolicy": "NotRequired"} for r in ("cpu", "memory")
            ]
        ),
        restartPolicy="Never",
    ),
    secured(
        runAsUser=0,
        runAsGroup=2147483647,
        runAsNonRoot=True,
        capabilities={"add": ["NET_ADMIN"], "drop": ["ALL"]},
        procMount="Default",
    ),
    secured(
        seccompProfile={"type": "Localhost", "localhostProfile": ""},
        allowPrivilegeEscalation=False,
        fsGroup="strange",
    ),
    secured(appArmorProfile={"type": "Localhost", "localhostProfile": "p"}),
    template(
        securityContext={
            "fsGroup": 0,
            "supplementalGroups": [1, 1],
            "fsGroupChangePolicy": "Always",
            "sysctls": [{"name": "net/core.somaxconn", "value": ""}],
        }
    ),
    template(hostUsers=False),
    volume(),
    volume(emptyDir=None, hostPath={"path": "a", "type": ""}),
    volume(emptyDir={"medium": "Disk", "sizeLimit": 0}),
    volume(
        configMap={
            "name": "Not A Name",
            "defaultMode": 511,
            "items": [{"key": "a b", "path": "x/y..z", "mode": 0}],
        }
    ),
    volume(secret={"secretName": "s", "optional": True}),
    volume(csi={"driver": "Csi.Example.com"}),
    volume(
        ephemeral={
            "volumeClaimTemplate": {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
        }
    ),
    volume(downwardAPI={"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}),
    template(
        serviceAccountName="s",
        volumes=[
            {
                "name": "v",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "t"}},
                        {"secret": {"name": "s"}},
                        {},
                    ]
                },
            }
        ],
    ),
    asks({"cpu": "0.0001", "memory": "1e9", "ephemeral-storage": 0}, {"cpu": "100u"}),
    asks({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi", "memory": 1}),
    asks({}, {"hugepages-2Mi": "0", "memory": None}),
    asks({"kubernetes.io/batch-cpu": "1500m"}, {}),
    asks({GPU: "2"}, {GPU: "2000m"}),
    template(
        container(resources={"requests": {"cpu": 1}}),
        resources={"limits": {"hugepages-2Mi": "1Gi"}},
    ),
    template(
        container(resources={"requests": {"cpu": 1}}),
        resources={"requests": {"cpu": 1}, "limits": {"cpu": 2}},
    ),
    template(
        tolerations=[
            {"operator": "Exists"},
            {"key": "a"},
            {"key": "a", "operator": "", "value": "", "effect": ""},
        ]
    ),
    template(
        tolerations=[
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -5}
        ]
    ),
    near(
        "nodeAffinity",
        {
            SOFT: [
                {
                    "weight": 100,
                    "preference": {
                        "matchExpressions": [
                            {"key": "a", "operator": "In", "values": ["not a value"]}
                        ]
                    },
                }
            ]
        },
    ),
    near("nodeAffinity", {HARD: {"nodeSelectorTerms": [{}]}}),
    near(
        "nodeAffinity",
        {
            HARD: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}
                ]
            }
        },
    ),
    near(
        "nodeAffinity",
        {
            HARD: {
                "nodeSelectorTerms": [
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": "NotIn", "values": ["n.x"]}
                        ]
                    }
                ]
            }
        },
    ),
    near(
        "podAffinity", {HARD: [{"topologyKey": "k", "labelSelector": {}, "namespaceSelector": {}}]}
    ),
    near(
        "podAntiAffinity",
        {
            SOFT: [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "k",
                        "labelSelector": {"matchLabels": {"a": ""}},
                        "mismatchLabelKeys": ["b"],
                    },
                }
            ]
        },
    ),
    spread(topologyKey="not a label key!"),
    spread(minDomains=3, nodeAffinityPolicy="Ignore"),
    template(
        topologySpreadConstraints=[
            {"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": w}
            for w in ("DoNotSchedule", "ScheduleAnyway")
        ]
    ),
    template(
        dnsPolicy="None",
        dnsConfig={
            "nameservers": ["fd00::1"],
            "searches": ["_tcp.a.", "."],
            "options": [{"name": "ndots"}],
        },
    ),
    template(dnsPolicy="", restartPolicy="", schedulerName="", preemptionPolicy=None),
    template(hostAliases=[{"ip": "::1"}], imagePullSecrets=[{}], nodeName="n.x"),
    template(
        activeDeadlineSeconds=2147483647,
        schedulingGates=[],
        readinessGates=[{"conditionType": "example.com/Ready"}],
    ),
    template(schedulingGates=[{"name": "example.com/a"}]),
    template(os={"name": "linux"}, setHostnameAsFQDN=False, hostnameOverride="a.b"),
    template(
        volumes=None, nodeSelector=None, tolerations=None, affinity=None, securityContext=None
    ),
    template(container(ports=None, env=None, resources=None, command=None, livenessProbe=None)),
    template(affinity={}, securityContext={}, dnsConfig={}, nodeSelector={"a": ""}),
    template(
        container(resources={"claims": [{"name": "g", "request": r} for r in "ab"]}),
        resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}],
    ),
    template(serviceAccountName="s", serviceAccount="Not A Name"),
    template(initContainers=[container(name="i", lifecycle={"stopSignal": "SIGTERM"})]),
    annotated({"Upper.Case/Name": "x\ny", "controller.kubernetes.io/pod-deletion-cost": "-5"}),
]
