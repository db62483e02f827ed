"""Requests to an API server, sent by the asyncio part of the official client.

The official client provides the connection pool, reads kubeconfig files and service accounts,
renews tokens, verifies certificates and uses proxies. The model classes of the official client are
not used, and objects stay JSON dictionaries. Decoding a pod into a dictionary takes 23 µs, and into
a model up to 737 µs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from asyncio.sslproto import SSLProtocol
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from optsched import __version__
from optsched.api.kinds import (
    POD,
    SUBJECT_ACCESS_REVIEW,
    Ref,
    collection_path,
    is_path_segment,
    object_path,
)
from optsched.api.wellknown import GROUP_NAME_ANNOTATIONS, SUBMITTER
from optsched.kube.client.errors import (
    Conflict,
    Garbled,
    Gone,
    KubeError,
    NotFound,
    Unreachable,
    parse_error,
)
from optsched.kube.client.kubeconfig import (
    copy_pipes,
    default_places,
    explain_unreadable,
    find_mistake,
)
from optsched.kube.client.listing import EVERYTHING, PAGE_SIZE, Page, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping

    from optsched.admission.review import AccessQuestion
    from optsched.api.kinds import Kind
    from optsched.kube.client.listing import Raw

CONNECTIONS: Final = 160
"""Maximum number of connections, enough for 64 binds, one watch per kind and all other writes.

If there were fewer connections, lease renewals and events would wait for binds.
"""

TLS_BUFFER: Final = 1 << 16
"""Buffer size of each TLS connection in bytes.

With asyncio's default of 256 KiB, the buffers of all connections could take 40 MiB.
"""

CONNECT_S: Final = 5.0
REQUEST_S: Final = 30.0
BIND_S: Final = 5.0
"""Timeout of a bind in seconds; it expires before another replica can take over the lease."""

WATCH_S: Final = 25
"""Seconds after which the server ends a watch, just after it has sent a bookmark."""

IDLE_S: Final = 28.0
"""Seconds without data after which a watch counts as broken; longer than `WATCH_S`."""

_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"
_DRY_RUN: Final = "?dryRun=All"
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_HEADERS: Final = {
    # Compression would cost the server more CPU time than it saves in transfer time.
    "Accept-Encoding": "identity",
    "User-Agent": f"optsched/{__version__}",
}
_USUAL: Final = aiohttp.ClientTimeout(total=REQUEST_S, sock_connect=CONNECT_S)
_BINDING: Final = aiohttp.ClientTimeout(total=BIND_S, sock_connect=CONNECT_S)
_WATCHING: Final = aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=IDLE_S)

DEFAULT_NAMESPACE: Final = "default"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class ConfigError(Exception):
    """Raised if the configuration names no API server or cannot be read."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: Raw | None = None
    content: str = _JSON
    accept: str = _JSON
    limits: aiohttp.ClientTimeout = _USUAL

    def __str__(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"


def preconditions(uid: str, version: str) -> dict[str, str]:
    """Return the metadata that a written object must have; empty values are not checked."""
    known = {"uid": uid, "resourceVersion": version}
    return {name: value for name, value in known.items() if value}


def parse_warnings(headers: Iterable[str]) -> Iterator[str]:
    """Yield each warning in a response's Warning headers (RFC 7234, section 5.5)."""
    for header in headers:
        for text in _WARNING.findall(header):
            yield re.sub(r"\\(.)", r"\1", text)


class Client:
    """Sends requests to an API server as a given user; failed requests raise `KubeError`.

    `server` is the API server's address, and `namespace` the default namespace.
    """

    def __init__(
        self,
        configuration: Any,  # noqa: ANN401  no types
        namespace: str,
        on_warning: Callable[[str], None],
    ) -> None:
        """`on_warning` is called with each warning that the server sends."""
        self.server = str(configuration.host)
        self.namespace = namespace
        self._configuration = configuration
        self._on_warning = on_warning
        self._rest = RESTClientObject(configuration)

    async def list_page(
        self, kind: Kind, limit: int, token: str = "", selection: Selection = EVERYTHING
    ) -> Page:
        """Return a page of a kind's list, in all namespaces unless the selection names one."""
        query = {"limit": limit, **({"continue": token} if token else {}), **selection.query}
        path = collection_path(kind, selection.namespace or None)
        content = await self._json(_Request("GET", f"{path}?{urlencode(query)}"))
        meta = content.get("metadata") or {}
        return Page(
            items=content.get("items") or (),
            resource_version=meta.get("resourceVersion", ""),
            token=meta.get("continue", ""),
        )

    async def watch_lines(
        self, kind: Kind, resource_version: str, selection: Selection = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events after a resource version as lines of JSON, until the watch ends."""
        query = {
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": WATCH_S,
            **selection.query,
        }
        path = f"{collection_path(kind, selection.namespace or None)}?{urlencode(query)}"
        async with self._answer(_Request("GET", path, limits=_WATCHING)) as answer:
            # The lines are split here because the stream's `readline` rejects long lines.
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line

    async def read(self, ref: Ref) -> Raw:
        """Return an object."""
        return await self._json(_Request("GET", _path(ref)))

    async def read_metadata(self, ref: Ref) -> Raw:
        """Return an object's metadata; the server omits the spec and status."""
        return await self._json(_Request("GET", _path(ref), accept=_METADATA))

    async def create(self, ref: Ref, body: Raw, *, dry_run: bool = False) -> Raw:
        """Create an object and return it as stored; a dry run stores nothing."""
        path = collection_path(ref.kind, ref.namespace or None)
        return await self._json(_Request("POST", f"{path}{_DRY_RUN if dry_run else ''}", body))

    async def validate(self, ref: Ref, body: Raw) -> tuple[str, ...]:
        """Create an object in a dry run, and return the server's warnings.

        Raises `Rejected` if the object is invalid; the error lists the invalid fields.
        """
        path = collection_path(ref.kind, ref.namespace or None)
        path = f"{path}{_DRY_RUN}&fieldValidation=Warn"
        async with self._answer(_Request("POST", path, body, accept=_METADATA)) as answer:
            await answer.read()
            return tuple(parse_warnings(answer.headers.getall("Warning", ())))

    async def patch(
        self, ref: Ref, body: Raw, subresource: str = "", *, dry_run: bool = False
    ) -> Raw:
        """Merge a patch into an object or its subresource (JSON merge patch, RFC 7386).

        Returns the object as stored or, in a dry run, as it would be stored.
        """
        path = f"{_path(ref, subresource)}{_DRY_RUN if dry_run else ''}"
        return await self._json(_Request("PATCH", path, body, _MERGE_PATCH))

    async def delete(
        self,
        ref: Ref,
        uid: str = "",
        propagation: str = "Background",
        grace_s: int | None = None,
        version: str = "",
    ) -> Raw:
        """Delete an object if it has this UID and resource version; empty values match any object.

        Returns the terminating object, or a Status if the object was deleted immediately.
        """
        body: Raw = {"propagationPolicy": propagation}
        if held := preconditions(uid, version):
            body["preconditions"] = held
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        return await self._json(_Request("DELETE", _path(ref), body))

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod to a node if the pod has the given UID and is not bound yet.

        The server sets the node and the annotations in one write (`BindingREST.assignPod`).
        """
        path = object_path(POD, namespace, name, "binding")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": name,
                **({"uid": uid} if uid else {}),
                **({"annotations": dict(annotations)} if annotations else {}),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._send(_Request("POST", path, body, limits=_BINDING))

    async def evict(
        self, namespace: str, name: str, uid: str, version: str = "", *, grace_s: int | None = None
    ) -> None:
        """Evict a pod if it has the given UID and no PodDisruptionBudget forbids the eviction.

        `version` is the expected resource version of the pod, or empty for any version. Raises
        Conflict if the pod has changed. `grace_s` is the grace period in seconds, or None for the
        grace period in the pod's spec.
        """
        path = object_path(POD, namespace, name, "eviction")
        held = preconditions(uid, version)
        options: dict[str, Any] = {"preconditions": held} if held else {}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        only = {"deleteOptions": options} if options else {}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            **only,
        }
        await self._send(_Request("POST", path, body, limits=_BINDING))

    async def close(self) -> None:
        """Close all connections to the server."""
        await self._rest.close()

    async def _json(self, request: _Request) -> Raw:
        raw = await self._send(request)
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError) as e:
            raise Garbled(f"{request}: the response is not JSON") from e
        if not isinstance(found, dict):
            raise Garbled(f"{request}: the response is not a JSON object")
        return found

    async def _send(self, request: _Request) -> bytes:
        async with self._answer(request) as answer:
            return await answer.read()

    @asynccontextmanager
    async def _answer(self, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response whose body is not read yet; raises KubeError if the request fails."""
        headers = {"Content-Type": request.content, "Accept": request.accept, **_HEADERS}
        try:
            settings = await self._configuration.auth_settings()
            headers |= {setting["key"]: setting["value"] for setting in settings.values()}
            answer = await self._rest.request(
                request.method,
                f"{self._configuration.host}{request.path}",
                headers=headers,
                body=request.body,
                _request_timeout=request.limits,
            )
            response: aiohttp.ClientResponse = answer.response
            try:
                if response.status >= 400:
                    retry_after = response.headers.get("Retry-After", "")
                    body, phrase = await response.read(), response.reason or ""
                    raise parse_error(response.status, body, phrase, retry_after)
                for warning in parse_warnings(response.headers.getall("Warning", ())):
                    self._on_warning(warning)
                yield response
            finally:
                response.release()
        except KubeError:
            raise
        except TimeoutError as e:
            raise Unreachable(f"{request}: no answer in time") from e
        except aiohttp.ClientConnectorError as e:
            if isinstance(e, aiohttp.ClientConnectorCertificateError):
                reason = str(e.certificate_error)
            else:
                found, number = e.os_error, e.os_error.errno or 0
                # Use the operating system's error text, such as `Connection refused`.
                is_system = type(found) in (OSError, ConnectionRefusedError) and number > 0
                reason = os.strerror(number) if is_system else str(found.strerror or found)
            raise Unreachable(f"{request}: {e.host}:{e.port}: {reason}") from e
        except (aiohttp.ClientError, OSError, config.ConfigException) as e:
            raise Unreachable(f"{request}: {str(e) or type(e).__name__}") from e


@asynccontextmanager
async def connect(
    kubeconfig: str = "", server: str = "", on_warning: Callable[[str], None] = lambda _: None
) -> AsyncIterator[Client]:
    """Yield a client, and renew its credentials while the context is open.

    `kubeconfig` is the path of a file. If `kubeconfig` is empty, KUBECONFIG is used, or else the
    pod's service account, or else `~/.kube/config`. `server` overrides the configured address.
    `on_warning` is called with each warning that the server sends. Raises ConfigError.
    """
    SSLProtocol.max_size = TLS_BUFFER
    configuration = Configuration()
    configuration.connection_pool_maxsize = CONNECTIONS
    # Looking up proxies and .netrc for each request takes more CPU time than the request itself.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    loader = None
    names_server = (
        bool(kubeconfig) or _is_in_cluster(os.environ) or not explain_unreadable(default_places())
    )
    if not server or names_server:
        loader = await _load(configuration, kubeconfig, server)
    configuration.host = server.rstrip("/") or configuration.host
    namespace = ""
    try:
        if loader is not None:
            namespace = str(loader.current_context["context"].get("namespace") or "")
        elif _is_in_cluster(os.environ) and _POD_NAMESPACE.is_file():
            namespace = _POD_NAMESPACE.read_text().strip()
        client = Client(configuration, namespace or DEFAULT_NAMESPACE, on_warning)
    except (OSError, ValueError) as e:
        reason = str(getattr(e, "reason", None) or e).replace("_", " ").lower()
        place = kubeconfig or default_places()
        message = f"{place} cannot be used: its certificates or keys: {reason}"
        raise ConfigError(message) from e
    renewal: asyncio.Task[None] | None = None
    is_plugin = loader is not None and loader._user is not None and "exec" in loader._user
    if is_plugin or getattr(loader, "provider", None) == "gcp":
        # The client renews all tokens by itself, except those of exec plugins and Google Cloud.
        renewal = asyncio.create_task(config.refresh_token(loader, configuration))
    try:
        yield client
    finally:
        if renewal is not None:
            renewal.cancel()
            with suppress(asyncio.CancelledError):
                await renewal
        await client.close()


async def _load(configuration: Any, kubeconfig: str, server: str) -> Any:  # noqa: ANN401  no types
    """Fill the client configuration; return the loader that renews credentials, None in a pod."""
    is_inside = not kubeconfig and _is_in_cluster(os.environ)
    places = "the pod's service account" if is_inside else kubeconfig or default_places()
    try:
        if is_inside:
            config.load_incluster_config(client_configuration=configuration)
            return None
        problem = explain_unreadable(places)
        if problem:
            raise ConfigError(problem)
        with copy_pipes(places) as copies:
            problem = find_mistake(copies, server)
            if problem:
                raise ConfigError(f"{places} cannot be used: {problem}")
            return await config.load_kube_config(
                config_file=copies, client_configuration=configuration
            )
    except ConfigError:
        raise
    except Exception as e:
        # The official client raises arbitrary exceptions for malformed files.
        problem = " ".join(str(e).split())
        raise ConfigError(f"{places} cannot be used: {problem}") from e


def _is_in_cluster(environment: Mapping[str, str]) -> bool:
    return "KUBECONFIG" not in environment and "KUBERNETES_SERVICE_HOST" in environment


def _path(ref: Ref, subresource: str = "") -> str:
    """Return an object's URL path; raises NotFound if its name is not a valid object name.

    Users write object names in annotations, so a name must not lead to another URL path.
    """
    if not is_path_segment(ref.name):
        raise NotFound(HTTPStatus.NOT_FOUND, "NotFound", f"no object has the name {ref.name!r}")
    return object_path(ref.kind, ref.namespace or None, ref.name, subresource)


TRIES: Final = 3
"""Maximum number of attempts to read a list if its pages expire while it is read."""


async def list_objects(source: Client, kind: Kind, selection: Selection = EVERYTHING) -> list[Raw]:
    """Return all selected objects of a kind, in the server's order; raises `KubeError`."""
    left = TRIES
    while True:
        left -= 1
        try:
            return [obj async for page in _pages(source, kind, selection) for obj in page.items]
        except Gone:
            if not left:
                raise


async def _pages(source: Client, kind: Kind, selection: Selection) -> AsyncIterator[Page]:
    token = ""
    while True:
        page = await source.list_page(kind, PAGE_SIZE, token, selection)
        yield page
        token = page.token
        if not token:
            return


async def can_access(api: Client, question: AccessQuestion) -> bool:
    """Return whether RBAC allows a user's request; raises KubeError if the review fails."""
    kind, subject = question.kind, question.subject
    attributes = {
        "group": kind.group,
        "version": kind.version,
        "resource": kind.plural,
        "subresource": question.subresource,
        "verb": question.verb,
        "name": question.name,
        "namespace": question.namespace,
    }
    spec = {
        "user": subject.user,
        "groups": sorted(subject.groups),
        "resourceAttributes": {name: text for name, text in attributes.items() if text},
    }
    return (await review(api, SUBJECT_ACCESS_REVIEW, spec)).get("allowed") is True


async def review(api: Client, kind: Kind, spec: Raw) -> dict[str, Any]:
    """Create a review, such as a TokenReview, and return its status; raises KubeError."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
    status = (await api.create(Ref(kind, "", ""), body)).get("status")
    return status if isinstance(status, dict) else {}


async def patch_current(
    api: Client,
    ref: Ref,
    change: Callable[[Raw], Raw | None],
    tries: int,
    subresource: str = "",
) -> bool:
    """Read an object and patch it; after a conflict, read the object again and repeat.

    `change` returns the patch for the object as read, or None if no patch is necessary. `tries` is
    the maximum number of patches; if the last patch also conflicts, Conflict is raised. Returns
    whether the object was patched.
    """
    while True:
        tries -= 1
        body = change(await api.read(ref))
        if body is None:
            return False
        try:
            await api.patch(ref, body, subresource)
        except Conflict:
            if not tries:
                raise
        else:
            return True


async def list_podgroup_members(source: Client, namespace: str) -> tuple[Raw, ...]:
    """Return a namespace's pods that name a PodGroup, reduced to the fields about PodGroups.

    Other fields are dropped as each page arrives, so a large namespace takes little memory.
    """
    members: list[Raw] = []
    async for page in _pages(source, POD, Selection(namespace)):
        for pod in page.items:
            meta = pod.get("metadata") or {}
            annotations = meta.get("annotations") or {}
            group = (pod.get("spec") or {}).get("schedulingGroup")
            if not group and not any(annotations.get(key) for key in GROUP_NAME_ANNOTATIONS):
                continue
            keys = (*GROUP_NAME_ANNOTATIONS, SUBMITTER)
            kept = {key: annotations[key] for key in keys if key in annotations}
            spec = {"schedulingGroup": group} if group else {}
            members.append(
                {"metadata": {"name": meta.get("name"), "annotations": kept}, "spec": spec}
            )
    return tuple(members)
