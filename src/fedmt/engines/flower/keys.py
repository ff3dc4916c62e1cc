"""Keys: who a center is (fingerprints), what it said (signatures), and throwaway keys for trial deployments.

A center has one key pair. Flower authenticates its node with it, `federation.toml` binds the center's name to
its fingerprint, and the center signs its answers with it.

    python -m fedmt.engines.flower.keys OUT --host 127.0.0.1 --center Berlin --center Lyon

    ca.crt                          the authority: every machine gets it
    server.pem, server.key          the SuperLink's certificate and key: only for the coordinator
    <center>, <center>.pub          a key pair for each center: the private key is only for its machine, the
    public key is registered at the SuperLink

The fingerprints are printed as `ssh-keygen -l` prints them. For real use, ask whoever issues certificates in
your institution, and let each center make its own key pair (`ssh-keygen -t ecdsa -b 384`). A private key that
is never sent cannot be stolen in transit.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import hashlib
import ipaddress
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmt.core.errors import FedmtError
from fedmt.runs.files import writing

DAYS = 30

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


# -- who is who ---------------------------------------------------------------------------------------


def fingerprint(key: PublicKey) -> str:
    """The fingerprint as `ssh-keygen -l` prints it: SHA256 of the key in OpenSSH's format."""
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def public_key(pem: bytes) -> PublicKey | None:
    """A key as Flower keeps it. None if there is no key, as in Flower's simulation."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, PublicKey) else None


def read_private_key(path: Path) -> Key:
    """The private key that a SuperNode is started with, as `ssh-keygen -t ecdsa` writes it."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise FedmtError(f"{path}: the private key cannot be read ({error.strerror or error}).") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedmtError(
            f"{path}: this is not a private key in OpenSSH's format without a passphrase ({error}). Make one "
            "with `ssh-keygen -t ecdsa -b 384`."
        ) from None
    if not isinstance(key, Key):
        raise FedmtError(f"{path}: expected an ECDSA key. Make one with `ssh-keygen -t ecdsa -b 384`.")
    return key


# -- what it said -------------------------------------------------------------------------------------


def statement(run: str, round: int, message: str, digests: Mapping[str, str]) -> bytes:
    """What a center signs. message: the id of the message that it answers. digests: the digests of the parts
    of its answer, by name."""
    return json.dumps(["fedmt answer 1", run, round, message, dict(digests)], sort_keys=True).encode()


def sign(key: Key, said: bytes) -> bytes:
    return key.sign(said, ec.ECDSA(hashes.SHA256()))


def verify(key: PublicKey, said: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, said, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


# -- throwaway keys ----------------------------------------------------------------------------------


def make_keys(out: Path, hosts: Sequence[str], centers: Sequence[str]) -> dict[str, str]:
    """hosts: names or addresses by which the centers reach the SuperLink. Returns the fingerprints."""
    # Its own processes reach the SuperLink on loopback.
    hosts = list(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    known = [_host(host) for host in hosts]
    taken = {"ca.crt", "server.pem", "server.key"}
    for center in dict.fromkeys(centers):
        files = {center, f"{center}.pub"}
        if not re.fullmatch(r"[\w .-]+", center) or center.startswith(".") or files & taken:
            raise FedmtError(
                f"'{center}' cannot be used as a file name. Give the center another name for its key."
            )
        taken |= files
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmt throwaway authority")])
    ca = (
        _certificate(ca_name, ca_name, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedmt throwaway SuperLink")])
    certificate = (
        _certificate(name, ca_name, server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    _write(out / "ca.crt", ca.public_bytes(pem))
    _write(out / "server.pem", certificate.public_bytes(pem))
    _write_private(out / "server.key", server, serialization.PrivateFormat.PKCS8)
    # The authority's own key is not written, because it has signed everything it was made for.
    made: dict[str, str] = {}
    for center in centers:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(out / center, key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        _write(out / f"{center}.pub", public + b"\n")
        made[center] = fingerprint(key.public_key())
    return made


def _certificate(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", host):
            raise FedmtError(
                f"--host '{host}': expected a name in ASCII or an address, without a port, such as "
                "coordinator.example.org."
            ) from None
        return x509.DNSName(host)


def _write(path: Path, data: bytes) -> None:
    with writing(path):
        path.write_bytes(data)


def _write_private(path: Path, key: Key, form: serialization.PrivateFormat) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with writing(path):
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Creates a throwaway authority and keys, to try out a deployment."
    )
    parser.add_argument("out", type=Path, help="folder for the files")
    parser.add_argument(
        "--host", action="append", default=[], help="name or address of the SuperLink; may be repeated"
    )
    parser.add_argument("--center", action="append", default=[], help="a center's name; may be repeated")
    given = parser.parse_args(arguments)
    try:
        if (given.out / "server.key").exists():
            raise FedmtError(
                f"{given.out} has keys already, and others would not fit those that you have passed on. Name "
                "another folder, or delete this one."
            )
        made = make_keys(given.out, given.host, given.center)
    except FedmtError as error:
        print(f"fedmt: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"Wrote the keys to {given.out}. They are valid for {DAYS} days.")
    for center, key in made.items():
        print(f'\n[[centers]]\nname = "{center}"\nkey = "{key}"')


if __name__ == "__main__":
    main()
