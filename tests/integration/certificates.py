"""Makes a certificate authority and what it vouches for, as the PEM files that clients and brokers read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization as pem


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of one certificate.

    Attributes:
        chain: the certificate (``ssl.certificate.location`` of clients).
        key: its private key, readable by all (``ssl.key.location``).
        locked_key: the same key, which opens with the password only.
        password: opens the locked key.
        store: key and chain in one file, as brokers take them (``ssl.keystore.location``, type ``PEM``).
    """

    chain: Path
    key: Path
    locked_key: Path
    password: str
    store: Path


class Authority:
    """Vouches for whoever asks.

    Args:
        folder: where its files go; made if absent.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.certificate = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.certificate))

    def issue(self, name: str, *identities: str, expires: datetime | None = None) -> Certificate:
        """A certificate of that common name, for these host names and addresses, or none, for a client."""
        leaf = self._authority.issue_cert(
            *(identities or (f"{name}@example.org",)), common_name=name, not_after=expires
        )
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        secret = pem.load_pem_private_key(leaf.private_key_pem.bytes(), password=None)
        password = f"opens-the-key-of-{name}"
        key = secret.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        lock = pem.BestAvailableEncryption(password.encode())
        write = self._writer(name)
        return Certificate(
            chain=write("chain", chain),
            key=write("key", key),
            locked_key=write("locked-key", secret.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, lock)),
            password=password,
            store=write("store", key + chain),
        )

    def _writer(self, name: str) -> Callable[[str, bytes], Path]:
        def write(kind: str, content: bytes) -> Path:
            path = self._folder / f"{name}-{kind}.pem"
            path.write_bytes(content)
            return path

        return write
