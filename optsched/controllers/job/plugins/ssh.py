"""The plugin ssh: a job's pods share one key pair, so they can log in to each other."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from optsched.api.kinds import SECRET
from optsched.controllers.job.object_names import hosts
from optsched.controllers.job.plugins.base import Extra, KeyPair, Plugin, add_mount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.job import Job
    from optsched.controllers.job.plugins.base import Draft, Flags

HOME: Final = "/root/.ssh"
_FOLDER: Final = ".ssh"
_KEYS: Final = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")
_PATH: Final = "ssh-key-file-path"
_PRIVATE: Final = "ssh-private-key"
_PUBLIC: Final = "ssh-public-key"
_PORT: Final = "ssh-port"
_STANDARD_PORT: Final = 22


def secret_name(job: Job) -> str:
    """Return the name of the Secret with a job's key pair."""
    return f"{job.meta.name}-ssh"


def ssh_config(job: Job, port: int = _STANDARD_PORT) -> str:
    """Return the SSH client configuration: the address of each host, and no host key checks."""
    lines = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null"]
    for task in job.spec.tasks:
        for name, address in hosts(job.meta.name, task):
            lines += [f"Host {name}", f"  HostName {address}"]
            if port != _STANDARD_PORT:
                lines.append(f"  Port {port}")
    return "\n".join(lines) + "\n"


def dress_ssh(draft: Draft, flags: Flags) -> None:
    """Mount the key pair and the SSH configuration in all containers."""
    name, path = secret_name(draft.job), flags.text(_PATH)
    items = [{"key": key, "path": f"{_FOLDER}/{key}"} for key in _KEYS]
    mode = 0o600 if path == HOME else 0o644
    secret = {"secretName": name, "items": items, "defaultMode": mode}
    draft.add_volume({"name": name, "secret": secret})
    mount = {"name": name, "mountPath": path, "subPath": _FOLDER}
    add_mount(draft.all_containers, mount)


def extras_ssh(job: Job, flags: Flags) -> tuple[Extra, ...]:
    """Return the plugin's Secret, with the given or a generated key pair and the configuration."""
    config = {"data": {"config": _encode(ssh_config(job, flags.number(_PORT)))}}
    make = partial(_build_secret, config["data"])
    given = KeyPair(flags.text(_PRIVATE), flags.text(_PUBLIC))
    manifest = make(given)
    name = secret_name(job)
    if given.private:
        return (Extra(SECRET, name, manifest, config),)
    return (Extra(SECRET, name, manifest, config, make),)


def _build_secret(config: Mapping[str, str], keys: KeyPair) -> dict[str, Any]:
    public = _encode(keys.public)
    data = {"id_rsa": _encode(keys.private), "id_rsa.pub": public, "authorized_keys": public}
    return {"type": "Opaque", "data": {**data, **config}}


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


_FLAGS: Final = ((_PATH, HOME), (_PRIVATE, ""), (_PUBLIC, ""), (_PORT, _STANDARD_PORT))
SSH = Plugin("ssh", _FLAGS, dress_ssh, extras_ssh)
