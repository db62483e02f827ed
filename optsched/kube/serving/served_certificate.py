"""The certificate that a TLS server presents."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING

from optsched.kube.serving.certificate_sources import CertificateError
from optsched.kube.serving.certificates import load_credentials, server_context

if TYPE_CHECKING:
    from datetime import datetime

    from optsched.kube.serving.certificate_sources import CertificateFiles
    from optsched.kube.serving.certificates import Credentials

log = logging.getLogger(__name__)


class ServedCertificate:
    """A TLS context and the credentials in it.

    Attributes
    ----------
    tls
        For servers; new connections get the newest credentials.
    credentials
        Those in use; None before the first.

    """

    def __init__(self, server: str) -> None:
        """server: the name of the server in the log."""
        self.tls = server_context()
        self.credentials: Credentials | None = None
        self._server = server

    def present(self, credentials: Credentials) -> datetime:
        """Use credentials for new connections; returns when the certificate ends.

        ValueError or OSError for files that hold none: the certificate in use stays.
        """
        ends = load_credentials(self.tls, credentials)
        self.credentials = credentials
        log.info("%s: a certificate that ends %s is shown", self._server, ends.isoformat())
        return ends

    async def load_files(self, files: CertificateFiles) -> datetime | None:
        """Use the certificate that files hold now; returns when it ends, None if it is in use.

        CertificateError where they hold none or can not be read.
        """
        credentials = await files.credentials()
        if credentials == self.credentials:
            return None
        try:
            return self.present(credentials)
        except (ssl.SSLError, ValueError) as e:
            pair = f"{files.certificate} and {files.key}"
            raise CertificateError(f"{pair} are no certificate and its key in PEM") from e
