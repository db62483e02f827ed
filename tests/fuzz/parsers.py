"""The fuzzed parsers, with real inputs and their documented errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from optsched.admission.resource_groups import GroupsError, read_resource_groups
from optsched.admission.review import MalformedReview, encode_response, read_body
from optsched.admission.services import SERVICES, review
from optsched.admission.world import Settings
from optsched.api.hypernode import parse_hypernode, parse_nodeshard, parse_numatopology
from optsched.api.job import parse_job
from optsched.api.jobflow import parse_cronjob, parse_jobflow, parse_jobtemplate
from optsched.api.podgroup import parse_podgroup, parse_scheduling_group
from optsched.api.queue import parse_queue
from optsched.api.wellknown import parse_joined, parse_submitters
from optsched.cluster.cel import CelError, Unsupported, compile_selector
from optsched.cluster.dra_devices import DeviceId, PooledDevice
from optsched.cluster.relocation import read_evicted, read_moves
from optsched.controllers.hypernode import ConfigError, read_sources
from optsched.controllers.job.plugin_interface import read_flags
from optsched.controllers.ufm import UfmError, read_links
from optsched.formats.codec.gpu_shares import parse_device_table
from optsched.formats.codec.nodes import parse_node
from optsched.formats.codec.numatopologies import parse_numa
from optsched.formats.codec.pod_limits import parse_budget, parse_priority_class, parse_quota
from optsched.formats.codec.pods.reader import DecodeOptions, PodDecoder
from optsched.formats.codec.queues import read_usage
from optsched.formats.codec.resource_claims import (
    parse_device_claim,
    parse_device_class,
    parse_slice,
)
from optsched.formats.codec.volumes import parse_csi_node
from optsched.formats.extender_protocol import Verb, read_refusals, read_reply
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import Document, read_json, read_yaml, write_yaml
from optsched.formats.plan import parse_plan, read_plan
from optsched.formats.snapshots.assembly import assemble
from optsched.formats.snapshots.instance_files import read_instance
from optsched.formats.solve_result import parse_result, read_result
from optsched.formats.traces.cluster_logs import read_acme, read_helios, read_pai, read_philly
from optsched.formats.traces.gavel import read_gavel
from optsched.formats.traces.openb_cluster import read_openb_trace
from optsched.formats.traces.published_jobs import equal_nodes
from optsched.formats.traces.trace_file import read_trace_file
from optsched.kube.client.client import parse_warnings
from optsched.kube.client.errors import parse_error
from optsched.policy import parse_policy
from optsched.policy.diagnostic import PolicyError
from optsched.study.instances.instance_catalogue import read_catalogue
from optsched.study.packing.vbp import parse_vbp
from optsched.study.reassignment.roadef import parse_reassignment
from optsched.units import (
    GPU,
    QuantityError,
    parse_amount,
    parse_duration_ns,
    parse_quantity,
    parse_quantity_field,
    parse_time_ms,
)
from optsched.units.cron import parse_timetable
from optsched.units.duration import parse_hours
from optsched.units.input_errors import UnitError
from optsched.units.patterns import PatternError, parse_pattern
from tests.admission import kit
from tests.formats import objects
from tests.formats.codec.test_gpu_shares import REGISTER
from tests.formats.traces import test_gavel, test_helios, test_pai, test_philly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).parents[2]
MOST_SEED: Final = 12_000
"""The maximum number of characters of an input before mutations."""


@dataclass(frozen=True)
class Parser:
    """A parser with its inputs and limits.

    Attributes
    ----------
    read
        The function to call with a text or JSON object, and with a folder for its files.
    errors
        The documented errors. Every other error is a finding.
    seeds
        A function that returns valid inputs.
    steps
        The limit of executed Python lines per character of the input, and a constant to add.

    """

    name: str
    read: Callable[[Any, Path], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[Any]]
    steps: tuple[int, int] = (200, 50_000)


def texts(*given: str) -> Callable[[], Sequence[str]]:
    return lambda: given


def files(*patterns: str) -> Callable[[], Sequence[str]]:
    @cache
    def read() -> Sequence[str]:
        found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        whole = [path.read_text("utf-8") for path in found]
        # A prefix of a YAML text is valid YAML, but a prefix of a JSON text is not valid JSON.
        return [t for t in whole if len(t) <= MOST_SEED] or [t[:MOST_SEED] for t in whole]

    return read


def parts_of(*patterns: str) -> Callable[[], Sequence[Any]]:
    """Return a function that reads the objects in YAML and JSON files."""

    @cache
    def read() -> Sequence[Any]:
        found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        parts = (part for path in found for part in read_yaml(path.read_text("utf-8")))
        return [part.value for part in parts if isinstance(part, Document)]

    return read


def as_json(
    read: Callable[[Any, Path], object],
) -> Callable[[Any, Path], object]:
    """Return a function that parses the JSON text of an object, because JSON is valid YAML."""
    return lambda obj, folder: read(json.dumps(obj), folder)


@cache
def manifests() -> Sequence[Any]:
    """Return the objects of examples and samples, and objects with every
    annotation that is read.
    """
    found: list[Any] = []
    for pattern in ("instances/examples/*.yaml", "deploy/samples/*.yaml"):
        for path in sorted(ROOT.glob(pattern)):
            for part in read_yaml(path.read_text("utf-8")):
                value = getattr(part, "value", None)
                items = value.get("items") if isinstance(value, dict) else None
                found += items if isinstance(items, list) else [value]
    made = [
        *(objects.node("n"), objects.pod("p", objects.claiming("c")), objects.device_class()),
        *(objects.device_slice("n", "d"), objects.device_claim("c", 2), objects.queue("q")),
        *(objects.group("g", {"minMember": 2}), kit.job(kit.task(volumes=[])), NODE, POD),
    ]
    return [*(each for each in found if isinstance(each, dict)), *made]


NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "n",
        "labels": {"topology.kubernetes.io/zone": "z", "nvidia.com/gpu.product": "A100"},
        "annotations": {
            "volcano.sh/node-vgpu-register": REGISTER,
            "hami.io/node-register-Ascend910A": '[{"id": "a", "count": 1, "devmem": 65536}]',
            "volcano.sh/oversubscription": "true",
            "cpu_usage": "10.5",
        },
    },
    "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "8", "volcano.sh/gpu-number": "2", "volcano.sh/gpu-memory": "99"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "creationTimestamp": "2026-11-21T00:00:00Z",
        "annotations": {
            "scheduling.k8s.io/group-name": "g",
            "volcano.sh/preemptable": "true",
            "volcano.sh/gpu-index": "0,1",
            "volcano.sh/vgpu-ids-new": "GPU-a,NVIDIA,100,10:;",
            "volcano.sh/numa-topology-policy": "single-numa-node",
            "volcano.sh/jdb-min-available": "50%",
        },
    },
    "spec": {
        "schedulerName": "volcano",
        "nodeName": "n",
        "containers": [
            {"name": "c", "resources": {"limits": {"cpu": "1500m", "volcano.sh/vgpu-number": "1"}}}
        ],
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
    },
    "status": {"phase": "Running"},
}


def of_object(parse: Callable[[object], object]) -> Callable[[Any, Path], object]:
    return lambda obj, _: parse(obj)


def of_text(parse: Callable[[str], object]) -> Callable[[Any, Path], object]:
    return lambda text, _: parse(text)


def of_file(parse: Callable[[Path], object], name: str) -> Callable[[Any, Path], object]:
    def read(text: str, folder: Path) -> object:
        file = folder / name
        file.write_text(text, "utf-8", errors="surrogateescape")
        return parse(file)

    return read


def selected(text: str) -> bool:
    device = PooledDevice(
        DeviceId("gpu.example.com", "p", "d"),
        (("gpu.example.com/index", 3), ("gpu.example.com/model", "A100")),
        (("gpu.example.com/memory", "40Gi"),),
    )
    return compile_selector(text).selects(device.properties)


def reviewed(text: str) -> object:
    request = read_body(text.encode("utf-8", "surrogatepass"))
    services = [s for s in SERVICES if s.kind.plural == request.resource.plural] or SERVICES[:1]
    return [encode_response("u", review(s, request, kit.world(), Settings())) for s in services]


def review_texts() -> Sequence[str]:
    found: list[str] = []
    for obj, service in [
        (kit.job(), SERVICES[1]),
        *((m, s) for m in manifests() for s in SERVICES),
    ]:
        if obj.get("kind") == service.kind.kind and obj:
            kind = service.kind
            request = {
                "uid": "u",
                "operation": "CREATE",
                "resource": {"group": kind.group, "version": kind.version, "resource": kind.plural},
                "object": obj,
            }
            whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            found.append(json.dumps({**whole, "request": request}))
    return [text for text in found if len(text) < MOST_SEED]


def helios(text: str, folder: Path) -> object:
    (folder / "cluster_gpu_number.csv").write_text(test_helios.GPUS)
    return of_file(read_helios, "cluster_log.csv")(text, folder)


def philly(text: str, folder: Path) -> object:
    test_philly.log(folder)
    return of_file(read_philly, "cluster_job_log")(text, folder)


def pai(text: str, folder: Path) -> object:
    parts = [*text.split("@@"), "", "", ""]
    return read_pai(test_pai.tables(folder, *parts[:3]))


def openb(text: str, folder: Path) -> object:
    nodes, _, pods = text.partition("@@")
    (folder / "openb_node_list_gpu_node.csv").write_text(nodes, errors="replace")
    return of_file(read_openb_trace, "openb_pod_list_mine.csv")(pods, folder)


def gavel(text: str, folder: Path) -> object:
    rates, _, rows = text.partition("@@")
    (folder / "simulation_throughputs.json").write_text(rates, errors="replace")
    return of_file(lambda file: read_gavel(file, test_gavel.NODES), "vc1.trace")(rows, folder)


def reassignment(text: str) -> object:
    model, _, assignment = text.partition("@@")
    return parse_reassignment(model, assignment)


def extender(text: str) -> object:
    raw = text.encode("utf-8", "surrogatepass")
    found: list[object] = []
    for verb in Verb:
        try:
            found.append(
                read_refusals(raw, "n") if verb is Verb.PREDICATE else read_reply(verb, raw)
            )
        except ValueError:
            continue
    return found


def api_error(text: str) -> object:
    """Read a refusal of an API server, or of a webhook whose answer the server passes on."""
    error = parse_error(429, text.encode("utf-8", "surrogatepass"), text, text)
    return str(error), error.label, error.causes


def submitters(text: str) -> object:
    return parse_submitters(text), parse_joined(text)


def catalogue() -> Sequence[Any]:
    """Return the first two entries of the catalogue of instances."""
    whole = parts_of("instances/catalogue.yaml")()[0]
    return [{**whole, "instances": whole["instances"][:2]}]


OPENB: Final = (
    "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,262144,2,V100M16\n@@"
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\np1,12000,16384,1,460,,LS,Running,0,12537496,0\n"
)
REPLY: Final = {
    "nodeScore": {"n": 3},
    "status": 1,
    "victims": [{"uid": "u", "namespace": "a", "name": "b"}],
    "overused": True,
    "nodeErrors": {"n": "full"},
    "errorMessage": "",
}
MOVES: Final = [
    {
        "pod": "a/b",
        "uid": "u",
        "to": "n",
        "gang": "a/g",
        "owner": "o",
        "queue": "q",
        "request": {"cpu": 1000},
        "at": 5,
    }
]
STATUS: Final = {
    "kind": "Status",
    "code": 429,
    "reason": "TooManyRequests",
    "message": "later",
    "details": {"retryAfterSeconds": 3, "causes": [{"field": "spec", "message": "no"}]},
}
SUBMITTERS: Final = {"user": "eve", "groups": ["students"], "joined": "uid queue"}
VOLUMES: Final = [
    objects.node("n"),
    objects.pod("p", objects.mounting("bound", "waits")),
    objects.bound_claim("bound", "v"),
    {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "waits", "namespace": "ns", "uid": "u"},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "selector": {"matchLabels": {"disk": "fast"}},
        },
        "status": {"phase": "Pending"},
    },
    objects.volume("v", {"topology.kubernetes.io/zone": "z"}),
    {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "w", "labels": {"disk": "fast"}},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "csi": {"driver": "d", "volumeHandle": "h"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
                    ]
                }
            },
        },
        "status": {"phase": "Available"},
    },
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "k", "values": ["v"]}]}],
    },
]
DISCOVERY: Final = {
    "networkTopologyDiscovery": [
        {
            "source": "ufm",
            "enabled": True,
            "interval": "10m",
            "credentials": {"secretRef": {"name": "a", "namespace": "volcano-system"}},
            "config": {"endpoint": "https://ufm", "insecureSkipVerify": True},
        },
        {
            "source": "label",
            "enabled": True,
            "config": {"networkTopologyTypes": {"t": [{"nodeLabel": "a/b"}]}},
        },
    ]
}
GROUPS: Final = {
    "resourceGroups": [
        {
            "resourceGroup": "a",
            "object": {"key": "namespace", "value": ["x"]},
            "schedulerName": "volcano",
            "labels": {"a": "b"},
            "tolerations": [{"key": "k"}],
        }
    ]
}
CSI_NODE: Final = objects.csi_node("n", csi=3)
EIGHT: Final = equal_nodes(2, {GPU: 8})
API: Final = (
    *(parse_cronjob, parse_hypernode, parse_job, parse_jobflow),
    *(parse_jobtemplate, parse_nodeshard, parse_numatopology, parse_podgroup, parse_queue),
    *(parse_priority_class, parse_scheduling_group, parse_budget, parse_device_claim),
    *(parse_device_class, parse_slice, parse_node, parse_numa, parse_quota, parse_csi_node),
)

_UNITS: Final = (UnitError,)
_FILES: Final = (InstanceError,)
PARSERS: Final = (
    Parser("quantity", of_text(parse_quantity), _UNITS, texts("1500m", "1.5Gi", "2e3", "-0.1n")),
    Parser("amount", of_text(lambda t: parse_amount("cpu", t)), (QuantityError,), texts("1", "5m")),
    Parser("quantity field", of_object(parse_quantity_field), _UNITS, lambda: ["1Gi", 2, 0.5]),
    Parser("duration", of_object(parse_duration_ns), _UNITS, lambda: ["1h30m", "1.5s", "300ms"]),
    Parser("time", of_object(parse_time_ms), _UNITS, lambda: ["2026-01-31T08:00:00.5+01:00"]),
    Parser("hours", of_object(parse_hours), _UNITS, lambda: ["22:00-6:30"]),
    Parser(
        "timetable", of_text(parse_timetable), _UNITS, texts("*/5 1-3,7 * JAN MON", "@every 1h")
    ),
    Parser("pattern", of_text(parse_pattern), (PatternError,), texts(r"^node-[0-9]+\.(a|b)$")),
    Parser(
        "selector",
        of_text(selected),
        (Unsupported, CelError),
        texts(
            "device.driver == 'gpu.example.com' && "
            "device.attributes['gpu.example.com'].index in [1, 3]",
            "!(has(device.attributes['gpu.example.com'].x)) || "
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('20Gi')) >= 0",
        ),
    ),
    Parser("yaml", of_text(lambda t: list(read_yaml(t))), (), files("instances/examples/*.yaml")),
    Parser("json", of_text(lambda t: list(read_json(t))), (), files("instances/*/*.plan.json")),
    Parser(
        "policy",
        of_text(lambda t: parse_policy(t, "x.conf")),
        (PolicyError,),
        files("models/*.yaml", "instances/examples/*.conf"),
    ),
    Parser("review", of_text(reviewed), (MalformedReview,), review_texts),
    Parser(
        "resource groups",
        of_text(read_resource_groups),
        (GroupsError,),
        texts(
            "resourceGroups:\n- resourceGroup: a\n  object: {key: namespace, value: [x]}\n"
            "  schedulerName: volcano\n  labels: {a: b}\n  tolerations: [{key: k}]\n"
        ),
    ),
    Parser(
        "discovery",
        of_text(read_sources),
        (ConfigError,),
        texts(
            "networkTopologyDiscovery:\n- source: ufm\n  enabled: true\n  interval: 10m\n"
            "  credentials: {secretRef: {name: a, namespace: volcano-system}}\n"
            "  config: {endpoint: https://ufm, insecureSkipVerify: true}\n"
            "- source: label\n  enabled: true\n  config:\n    networkTopologyTypes:\n"
            "      t: [{nodeLabel: a/b}]\n"
        ),
    ),
    Parser(
        "ufm",
        of_text(lambda t: read_links(t.encode("utf-8", "surrogatepass"))),
        (UfmError,),
        texts('[{"system_name": "h", "peer_node_name": "s", "description": "Computer IB Port"}]'),
    ),
    Parser(
        "extender",
        of_text(extender),
        (),
        texts('{"nodeScore": {"n": 3}, "status": 1, "victims": [{"uid": "u"}], "overused": true}'),
    ),
    Parser(
        "api error",
        of_text(api_error),
        (),
        lambda: [json.dumps(STATUS), "7"],
    ),
    Parser("api warnings", of_text(lambda t: [*parse_warnings([t])]), (), texts('299 - "a \\" b"')),
    Parser("submitters", of_text(submitters), (), lambda: [json.dumps(SUBMITTERS)]),
    Parser("mark", of_text(read_evicted), (), texts("pod-1=uid-1 pod-2=uid-2")),
    Parser(
        "flags",
        of_text(lambda t: read_flags(tuple(t.split()), (("port", 22), ("a", "b")))),
        (),
        texts("--port=22 -a x"),
    ),
    Parser(
        "moves",
        of_text(read_moves),
        (),
        texts(
            '[{"pod": "a/b", "uid": "u", "to": "n", "gang": "a/g", "owner": "o", "queue": "q", '
            '"request": {"cpu": 1000}, "at": 5}]'
        ),
    ),
    Parser(
        "usage",
        of_object(lambda o: read_usage(o if isinstance(o, dict) else {})),
        (),
        lambda: [{"volcano.sh/usage": "1", "cpu_usage": "10.5", "memory_usage": "7"}],
    ),
    Parser(
        "device table",
        of_object(parse_device_table),
        (),
        lambda: [
            {
                "data": {
                    "device-config.yaml": "nvidia:\n  knownMigGeometries:\n  - models: [A100]\n"
                    "    allowedGeometries:\n    - - {name: 1g.5gb, memory: 5120, count: 7}\n"
                    "vnpus:\n- chipName: 910A\n  commonWord: Ascend910A\n  memoryAllocatable: 1\n"
                }
            }
        ],
    ),
    *(Parser(parse.__name__, of_object(parse), (), manifests) for parse in API),
    Parser("pod", of_object(lambda o: PodDecoder(DecodeOptions()).read(o)), (), manifests),
    Parser(
        "objects",
        of_object(lambda o: assemble(o if isinstance(o, list) else [o])),
        (),
        lambda: [list(manifests()[i : i + 4]) for i in range(0, len(manifests()), 4)],
    ),
    Parser(
        "volumes",
        of_object(lambda o: assemble(o if isinstance(o, list) else [o])),
        (),
        lambda: [VOLUMES],
    ),
    Parser(
        "instance", of_file(read_instance, "x.yaml"), _FILES, files("instances/examples/*.yaml")
    ),
    Parser(
        "policy object",
        as_json(of_text(lambda t: parse_policy(t, "x.conf"))),
        (PolicyError,),
        parts_of("models/*.yaml", "instances/examples/*.conf"),
    ),
    Parser(
        "review object",
        as_json(of_text(reviewed)),
        (MalformedReview,),
        lambda: [json.loads(text) for text in review_texts()],
    ),
    Parser("plan object", of_object(parse_plan), (), parts_of("instances/*/tiny.*.plan.json")),
    Parser("result object", of_object(parse_result), (), parts_of("instances/*/tiny.*.plan.json")),
    Parser(
        "catalogue object",
        as_json(of_file(read_catalogue, "c.yaml")),
        _FILES,
        catalogue,
    ),
    Parser(
        "own trace object",
        as_json(of_file(read_trace_file, "t.yaml")),
        _FILES,
        parts_of("instances/traces/*.yaml"),
    ),
    Parser("discovery object", as_json(of_text(read_sources)), (ConfigError,), lambda: [DISCOVERY]),
    Parser(
        "resource groups object",
        as_json(of_text(read_resource_groups)),
        (GroupsError,),
        lambda: [GROUPS],
    ),
    Parser("extender object", as_json(of_text(extender)), (), lambda: [REPLY]),
    Parser("api error object", as_json(of_text(api_error)), (), lambda: [STATUS]),
    Parser("submitters object", as_json(of_text(submitters)), (), lambda: [SUBMITTERS]),
    Parser("moves object", as_json(of_text(read_moves)), (), lambda: [MOVES]),
    Parser("philly object", as_json(philly), _FILES, lambda: [[test_philly.GOOD]]),
    Parser("plan", of_text(read_plan), (), files("instances/*/*.plan.json")),
    Parser("result", of_text(read_result), (), files("tests/docs/*.json", "instances/*/*.json")),
    Parser(
        "catalogue",
        of_file(read_catalogue, "c.yaml"),
        _FILES,
        lambda: [write_yaml(each) for each in catalogue()],
    ),
    Parser(
        "vector packing", of_text(lambda t: parse_vbp(t, "x")), _FILES, files("instances/*/*.vbp")
    ),
    Parser(
        "reassignment",
        of_text(reassignment),
        _FILES,
        lambda: [
            "@@".join(
                (ROOT / f"instances/examples/{name}_small.txt").read_text()
                for name in ("model", "assignment")
            )
        ],
    ),
    Parser(
        "own trace", of_file(read_trace_file, "t.yaml"), _FILES, files("instances/traces/*.yaml")
    ),
    Parser("helios", helios, _FILES, texts("\n".join([test_helios.HEAD, *test_helios.JOBS]))),
    Parser(
        "acme",
        of_file(lambda f: read_acme(f, EIGHT), "trace.csv"),
        _FILES,
        texts("\n".join([test_helios.HEAD, *test_helios.JOBS])),
    ),
    Parser("philly", philly, _FILES, lambda: [json.dumps([test_philly.GOOD])]),
    Parser("pai", pai, _FILES, texts(f"{test_pai.JOBS}@@{test_pai.TASKS}@@{test_pai.MACHINES}")),
    Parser("openb", openb, _FILES, texts(OPENB)),
    Parser(
        "gavel",
        gavel,
        _FILES,
        lambda: [f"{json.dumps(test_gavel.RATES)}@@{test_gavel.row(5.0)}\n{test_gavel.row(7)}\n"],
    ),
)
PARSER_OF: Final = {parser.name: parser for parser in PARSERS}
