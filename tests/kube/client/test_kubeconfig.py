"""Kubeconfigs with mistakes give the user one sentence before the client sends a request."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import pytest

from optsched.kube.client.client import ConfigError, connect
from optsched.kube.client.kubeconfig import explain_unreadable, find_mistake, is_http_address

GOOD: Final = """\
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u, namespace: team}}]
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: u, user: {}}]
"""
SERVER: Final = "server: 'http://127.0.0.1:9'"


def changed(old: str, new: str) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new).encode()


MISTAKES: Final = {
    "empty": (b"", "the file is empty"),
    "blank": (b"\n# nothing\n", "the file is empty"),
    "binary": (bytes(range(256)), "is not UTF-8 text"),
    "NUL": (b"\0", "line 1, column 1: is not YAML that can be read: control characters"),
    "a word": (b"hello", "the file has no clusters, contexts or users"),
    "a list": (b"[1]", "the file has no clusters, contexts or users"),
    "broken": (b"clusters: [", "line 2, column 1: is not YAML"),
    "two": (GOOD.encode() + b"---\n" + GOOD.encode(), "the file holds 2 YAML documents"),
    "clusters": (changed("[{name: c, cluster: {" + SERVER + "}}]", "3"), "clusters: has to be a"),
    "entry": (changed("[{name: u, user: {}}]", "[u]"), "users[0]: has no name"),
    "mapping": (changed("user: {}}", "user: 3}"), "users[0]: u: user has to be a mapping"),
    "current": (changed("current-context: a\n", ""), "current-context is missing"),
    "no list": (changed("current-context: a", "current-context: [a]"), "current-context is miss"),
    "context": (
        changed("current-context: a", "current-context: z"),
        "current-context: there is no context 'z'; there are a",
    ),
    "cluster": (changed("cluster: c,", "cluster: x,"), "context a: there is no cluster 'x'"),
    "no cluster": (changed("cluster: c, ", ""), "context a: cluster is missing"),
    "user": (changed("user: u,", "user: x,"), "context a: there is no user 'x'; there are u"),
    "no server": (changed(SERVER, ""), "cluster c: server is missing: write https://HOST:PORT"),
    "no address": (changed("http://127.0.0.1:9", "here"), "cluster c: server: 'here' is not an a"),
    "port": (changed("127.0.0.1:9", "127.0.0.1:99999"), "cluster c: server: 'http://127.0.0.1:9"),
    "CA": (
        changed(SERVER, f"{SERVER}, certificate-authority: /gone"),
        "cluster c: certificate-authority: /gone: there is no such file",
    ),
    "CA data": (
        changed(SERVER, "server: 'https://127.0.0.1:9', certificate-authority-data: '%%'"),
        "its certificates or keys: no certificate or crl found",
    ),
    "key": (
        changed("user: {}", "user: {client-certificate: /gone, client-key: /gone}"),
        "user u: client-certificate: /gone: there is no such file",
    ),
    "plugin": (
        changed("user: {}", "user: {exec: {command: no-such-plugin}}"),
        "user u: exec: there is no program no-such-plugin: install it, or put it on the PATH",
    ),
    "namespace": (changed("namespace: team", "namespace: [1]"), "context a: namespace: [1] is no"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.asyncio
async def test_a_mistake_is_named_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, sentence = MISTAKES[name]
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        async with connect(str(path)):
            pass
    assert str(caught.value).startswith(f"{path} cannot be used: {sentence}")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("gone", "gone: there is no such file, so the address of the cluster is unknown"),
        ("folder", "folder: is a folder: name the kubeconfig in it"),
        ("x" * 300, f"{'x' * 300}: cannot be read: File name too long"),
        (
            "https://example.org/c",
            "https://example.org/c: is a URL: download the kubeconfig and name the file",
        ),
        ("gone:folder", "gone:folder: there is no such file"),
    ],
)
def test_places_without_a_kubeconfig_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    assert explain_unreadable(place).startswith(sentence)


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        changed("user: u, ", ""),
        changed(", namespace: team", ""),
    ],
)
@pytest.mark.asyncio
async def test_a_kubeconfig_in_order_is_taken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    assert (explain_unreadable(str(path)), find_mistake(str(path))) == ("", "")
    async with connect(str(path)) as client:
        assert client.server == "http://127.0.0.1:9"


@pytest.mark.asyncio
async def test_a_kubeconfig_may_come_from_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    make_writer = threading.Thread(target=fifo.write_text, args=(GOOD,))
    make_writer.start()
    async with connect(str(fifo)) as client:
        assert client.namespace == "team"
    make_writer.join()


def test_files_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    whole.write_bytes(changed("cluster: c,", "cluster: other,"))
    other = GOOD.replace("name: c,", "name: other,").replace("current-context: a\n", "")
    rest.write_text(other)
    assert find_mistake(f"{whole}:{rest}:{tmp_path / 'gone'}") == ""
    assert find_mistake(str(whole)).startswith("context a: there is no cluster 'other'")
    rest.write_text("clusters: 3")
    assert find_mistake(f"{whole}:{rest}").startswith(f"{rest}: clusters: has to be a list")


def test_an_address_stands_in_for_the_server_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(changed(SERVER, ""))
    assert find_mistake(str(path), "https://10.0.0.1:6443") == ""


def test_addresses_of_servers() -> None:
    good = ("http://a", "https://a:6443", "https://a.b/k8s/clusters/c-1", "https://[::1]:6443")
    assert all(map(is_http_address, good))
    bad = ("", "a", "a:80", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://a b")
    assert not any(map(is_http_address, bad))
