from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from optsched.controllers.job.preview import preview_jobs
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.files.diagnostics import InstanceError
from optsched.formats.files.yaml_text import write_yaml
from optsched.formats.snapshots.assembly import READ_KINDS
from optsched.formats.snapshots.instance_files import Instance, read_instance, read_objects
from tests.formats.objects import group, node, pod, queue, thing
from tests.support.shared import found as found_in_shared
from tests.support.shared import shared

if TYPE_CHECKING:
    from pathlib import Path


KINDS = ", ".join(dict.fromkeys(kind.kind for kind in READ_KINDS))


def told(found: Instance) -> list[str]:
    return [str(problem) for problem in found.problems]


def write(path: Path, *objects: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"---\n{write_yaml(obj)}" for obj in objects))
    return path


def test_a_file_of_documents(tmp_path: Path):
    found = read_instance(write(tmp_path / "a.yaml", node(), pod(), queue("q")))
    assert found.problems == found.notices == ()
    assert [n.name for n in found.snapshot.nodes] == ["n1"]
    assert [g.key for g in found.snapshot.gangs] == ["ns/pod:p"]


def test_a_folder_is_read_in_name_order_and_recursively(tmp_path: Path):
    write(tmp_path / "b" / "pods.yml", pod("p2"))
    write(tmp_path / "a.yaml", pod("p1"))
    (tmp_path / "c.json").write_text(json.dumps(pod("p3")))
    (tmp_path / "notes.txt").write_text("{")
    found = read_instance(tmp_path)
    assert found.problems == ()
    assert [(g.name, g.created_ms) for g in found.snapshot.gangs] == [
        ("pod:p1", 0),
        ("pod:p2", 1),
        ("pod:p3", 2),
    ]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_lists_are_taken_apart(tmp_path: Path, suffix: str):
    bare = {name: part for name, part in pod("p2").items() if name not in ("kind", "apiVersion")}
    typed = {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [bare]}
    both = {"apiVersion": "v1", "kind": "List", "items": [pod("p1"), node()]}
    for name, listed in (("both", both), ("typed", typed)):
        text = json.dumps(listed) if suffix == "json" else write_yaml(listed)
        (tmp_path / f"{name}.{suffix}").write_text(text)
    found = read_instance(tmp_path)
    assert found.problems == ()
    assert [g.name for g in found.snapshot.gangs] == ["pod:p1", "pod:p2"]
    assert len(found.snapshot.nodes) == 1


def test_problems_name_file_and_line(tmp_path: Path):
    bad = pod("bad", spec={"nodeSelector": {"a": 1}})
    listed = {"apiVersion": "v1", "items": [node(), bad], "kind": "List"}
    write(tmp_path / "a.yaml", {"apiVersion": "v1", "kind": "ConfigMap"}, listed)
    text = (tmp_path / "a.yaml").read_text().splitlines()
    # Keys are sorted, so the pod begins with its apiVersion.
    line = max(i for i, t in enumerate(text, 1) if t == "- apiVersion: v1")
    assert told(read_instance(tmp_path)) == [
        f"a.yaml:{line}: Pod ns/bad: spec.nodeSelector[a]: 1 is not a string: write it in quotes"
    ]


def test_broken_texts_do_not_keep_others_from_being_read(tmp_path: Path):
    write(tmp_path / "good.yaml", node())
    (tmp_path / "half.yaml").write_text(f"a: [\n---\n{write_yaml(pod())}")
    (tmp_path / "bad.json").write_text('{"kind": }')
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    (tmp_path / "twice.yaml").write_text(f"{write_yaml(queue('q'))}kind: Queue\n")
    found = read_instance(tmp_path)
    assert len(found.snapshot.nodes) == len(found.snapshot.gangs) == 1
    assert "q" in found.snapshot.queue_by_name
    lines = (tmp_path / "twice.yaml").read_text().count("\n")
    assert told(found) == [
        "bytes.yaml: is not UTF-8: byte 3 is 0xff",
        "bad.json:1:10: is not JSON: a value is expected",
        "half.yaml:2:1: is not YAML: while parsing a flow node, did not find expected node content",
        f"twice.yaml:{lines}:1: the key kind occurs twice: write it once",
    ]


def test_fields_that_a_queue_does_not_have_are_reported(tmp_path: Path):
    made = [queue("q", wieght=3), group("g", {"minMembers": 1})]
    found = read_instance(write(tmp_path / "a.yaml", *made))
    assert [(p.kind, p.key, p.path) for p in found.problems] == [
        ("Queue", "q", "spec.wieght"),
        ("PodGroup", "ns/g", "spec.minMembers"),
    ]
    assert "did you mean weight?" in told(found)[0]


def test_a_job_without_a_readable_name_is_told(tmp_path: Path):
    job = {**thing("batch.volcano.sh/v1alpha1", "Job", "", "ns"), "metadata": {"name": 123}}
    with pytest.raises(InstanceError, match=r"metadata\.name: 123 is not a string"):
        read_instance(write(tmp_path / "a.yaml", job), preview=preview_jobs)


def test_what_is_left_out_is_named(tmp_path: Path):
    jobs = [thing("batch.volcano.sh/v1alpha1", "Job", name, "ns") for name in ("a", "b")]
    theirs = pod("theirs", spec={"schedulerName": "other"})
    found = read_instance(write(tmp_path / "a.yaml", *jobs, theirs, node()))
    assert found.problems == ()
    assert [each.partition(": ")[2] for each in found.left_out] == [
        f"batch.volcano.sh/v1alpha1 Job {name} is ignored: no scheduler reads this kind"
        for name in "ab"
    ]
    assert found.left_out[0].startswith("a.yaml:2: ")
    assert found.notices == ("ignored: 1 pod waits for the scheduler other",)


def test_options_are_passed_on(tmp_path: Path):
    path = write(tmp_path / "a.yaml", pod("p", spec={"schedulerName": "mine"}))
    found = read_instance(path, DecodeOptions(("mine",), "spare"), 7)
    assert found.snapshot.gangs[0].queue == "spare"
    assert found.snapshot.taken_ms == 7


def test_progress_ends_at_the_total(tmp_path: Path):
    path = write(tmp_path / "a.yaml", node(), pod(), pod("q"))
    seen: list[tuple[int, int]] = []
    read_instance(path, progress=lambda read, total: seen.append((read, total)))
    size = len(path.read_text())
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file in this folder matches *.yaml, *.yml, *.json"),
        ({"a.yaml": "# nothing\n"}, "there is no object at all"),
        (
            {"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"},
            f"nothing to schedule: looked for {KINDS}; found only 1 v1 ConfigMap",
        ),
        ({"a.yaml": "a: [\n"}, "a.yaml:2:1: is not YAML"),
    ],
)
def test_where_there_is_nothing_says_what_was_looked_for(
    tmp_path: Path, files: dict[str, str], message: str
):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InstanceError) as caught:
        read_instance(tmp_path)
    assert message in str(caught.value)


def test_a_missing_path_is_told(tmp_path: Path):
    with pytest.raises(InstanceError, match="there is no such file or folder"):
        read_instance(tmp_path / "none")


def test_plain_objects_of_a_place(tmp_path: Path):
    path = write(
        tmp_path / "a.yaml", {"apiVersion": "v1", "kind": "List", "items": [node()]}, pod()
    )
    assert read_objects(path) == ([node(), pod()], ())


# --- manifests that users bring ------------------------------------------------------------------


@pytest.mark.parametrize("file", found_in_shared("manifests/**/*.yaml"), ids=lambda f: f.name)
def test_every_manifest_is_read(file: Path):
    objects, problems = read_objects(file)
    assert objects
    assert problems == ()


def test_all_manifests_together():
    found = read_instance(shared("manifests"))
    assert [p.message for p in found.problems] == [
        "is not a Kubernetes object: write apiVersion, kind and metadata"
    ] * 2  # the values of a chart, and a part of a configuration
    assert len(found.snapshot.queues) == 21
    group = found.snapshot.gang_by_key["default/training-job"]
    assert (group.priority, group.problem) == (1000, None)
    jobs = [each for each in found.left_out if " batch.volcano.sh/v1alpha1 Job " in each]
    assert len(jobs) == 34
