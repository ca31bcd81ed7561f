"""Files that look like secrets, and should not leave the machine by accident.

Owns: the names and contents that count.
Must not know: how files are found, what happens to those that are.
"""

from __future__ import annotations

import fnmatch
import re

HEAD_BYTES = 1 << 16
"""How much of a file's beginning `why_secret` needs."""

_HARMLESS = re.compile(r"\.(example|sample|template|dist|test|defaults?)$")
_NAMES: tuple[tuple[str, str], ...] = (
    (".env", "an environment file"),
    (".env.*", "an environment file"),
    ("id_rsa", "a private key"),
    ("id_dsa", "a private key"),
    ("id_ecdsa", "a private key"),
    ("id_ed25519", "a private key"),
    ("*.p12", "a key store"),
    ("*.pfx", "a key store"),
    ("*.jks", "a key store"),
    (".netrc", "passwords"),
    (".pgpass", "passwords"),
    (".htpasswd", "passwords"),
    (".git-credentials", "passwords"),
    (".pypirc", "passwords"),
    (".databrickscfg", "tokens"),
    (".vault-token", "a token"),
    (".token", "a token"),
    ("application_default_credentials.json", "cloud credentials"),
)
_PATHS: tuple[tuple[str, str], ...] = (
    (".aws/credentials", "cloud credentials"),
    (".docker/config.json", "registry credentials"),
    (".kube/config", "cluster credentials"),
    (".streamlit/secrets.toml", "secrets"),
    ("huggingface/token", "a token"),
    (".airyard/server/token", "a token"),
)
_PRIVATE_KEY = re.compile(rb"\s*-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_SERVICE_ACCOUNT = re.compile(rb'"type"\s*:\s*"service_account"')
_NPM_TOKEN = re.compile(rb"(?m)^[^#;\n]*_(?:authToken|auth|password)\s*=\s*[^\s$]")
_TOKEN = re.compile(
    rb"(?<![A-Za-z0-9_-])(?:"
    rb"AKIA(?![A-Z0-9]*EXAMPLE)[0-9A-Z]{16}|ASIA(?![A-Z0-9]*EXAMPLE)[0-9A-Z]{16}"
    rb"|gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,}|glpat-[A-Za-z0-9_-]{20,}"
    rb"|hf_[A-Za-z0-9]{34}|dapi[0-9a-f]{32}|xox[abprs]-[A-Za-z0-9-]{20,}|ayt_[A-Za-z0-9_-]{43}"
    rb")(?![A-Za-z0-9_-])"
)


def why_secret(path: str, head: bytes) -> str | None:
    """Say what secret a file looks like, from its path and first bytes; None when it does not."""
    name = path.rpartition("/")[2]
    if not _HARMLESS.search(name):
        for pattern, what in _NAMES:
            if fnmatch.fnmatchcase(name, pattern):
                return what
    for ending, what in _PATHS:
        if path == ending or path.endswith("/" + ending):
            return what
    if _PRIVATE_KEY.match(head):
        return "a private key"
    if name.endswith(".json") and b'"private_key"' in head and _SERVICE_ACCOUNT.search(head):
        return "cloud credentials"
    if name == ".npmrc" and _NPM_TOKEN.search(head):
        return "a token"
    if _TOKEN.search(head):
        return "text of the form of an access token"
    return None
