"""A stand-in for NVIDIA UFM, which serves its list of ports over TLS with a password."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from optsched.controllers.ufm import PATH
from optsched.formats.files.x509 import Authority
from optsched.local.plane import write_credential

if TYPE_CHECKING:
    from pathlib import Path

USERNAME, PASSWORD = "reader", "open sesame"


class Ufm:
    """A server that answers with `links`, or with an error code and `body`."""

    def __init__(self, folder: Path) -> None:
        now = datetime.now(UTC)
        authority = Authority.create("ufm", now=now)
        shown = authority.issue_server(("127.0.0.1",), now=now)
        write_credential(shown, folder / "ufm")
        self.authority = authority.credential.certificate.decode()
        self.links: tuple[tuple[str, str], ...] = ()
        self.code = 200
        self.body = b""
        self.asked: list[str] = []
        self.num_open = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ufm.crt", folder / "ufm.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def secret(self, *, trusts: bool = True, **other: str) -> dict[str, str]:
        """Return the data of a Secret with the credentials of this server."""
        texts = {"username": USERNAME, "password": PASSWORD, **other}
        if trusts:
            texts["ca.crt"] = self.authority
        return {key: b64encode(text.encode()).decode() for key, text in texts.items() if text}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        ufm = self
        wanted = f"Basic {b64encode(f'{USERNAME}:{PASSWORD}'.encode()).decode()}"

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                ufm.num_open += 1
                super().setup()

            def finish(self) -> None:
                super().finish()
                ufm.num_open -= 1

            def do_GET(self) -> None:
                ufm.asked.append(self.path)
                is_known = self.headers.get("Authorization") == wanted
                code = ufm.code if is_known and self.path == PATH else 401
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", f"{ufm.url}/elsewhere")
                body = ufm.body or json.dumps(ufm.ports()).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler

    def ports(self) -> list[dict[str, Any]]:
        """Return UFM's list of ports, with ports of hosts and one port of a switch."""
        hosts = [
            {"system_name": host, "peer_node_name": switch, "description": "Computer IB Port"}
            for host, switch in self.links
        ]
        port = {"system_name": "s1", "peer_node_name": "x", "description": "Switch IB Port"}
        return [*hosts, port]
