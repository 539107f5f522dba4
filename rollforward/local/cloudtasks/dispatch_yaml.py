"""dispatch.yaml: read, and checked as a deployment checks it.

    dispatch:
    - url: "*/mobile/*"
      service: mobile-frontend

The first rule that matches a request's host and path names its service. `*` may be at the
beginning of the host and at the end of the path.

Source: cloud.google.com/appengine/docs/standard/reference/dispatch-yaml
"""

import ipaddress
import re
from pathlib import Path
from typing import Any

from rollforward.local.cloudtasks.delivery.app_engine import DispatchRule

_MAX_RULES, _MAX_PATTERN = 20, 100
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_HOST = re.compile(rf"(?:\*(?:[a-z0-9-]*[a-z0-9])?|{_LABEL})(?:\.{_LABEL})*")
_SERVICE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_FIELDS = {"url", "service", "module"}


class DispatchYamlError(Exception):
    """The file cannot be used; the text names file, rule and field."""


def read(path: Path) -> list[DispatchRule]:
    """Return the rules of a dispatch.yaml.

    Raises:
        DispatchYamlError: it is missing, not YAML, or breaks a rule of the format.
    """
    import yaml  # Few emulators have such a file.

    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DispatchYamlError(f"{path}: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise DispatchYamlError(f"{path}: must be a mapping")
    entries = (content or {}).get("dispatch") or []
    if not isinstance(entries, list):
        raise DispatchYamlError(f"{path}: dispatch: must be a list of rules")
    if len(entries) > _MAX_RULES:
        raise DispatchYamlError(
            f"{path}: dispatch: must have at most {_MAX_RULES} rules, got {len(entries)}"
        )
    return [
        _rule(f"{path}: dispatch: rule {number}", entry) for number, entry in enumerate(entries, 1)
    ]


def _rule(where: str, entry: Any) -> DispatchRule:
    if not isinstance(entry, dict):
        raise DispatchYamlError(f"{where}: must be a mapping of url and service")
    for key in entry:
        if key not in _FIELDS:
            raise DispatchYamlError(f"{where}: {key}: is not a field of dispatch.yaml")
    service = entry.get("service", entry.get("module"))
    if not isinstance(service, str) or not _SERVICE.fullmatch(service):
        raise DispatchYamlError(
            f"{where}: service: must be lower-case letters, digits and hyphens, got {service!r}"
        )
    url = entry.get("url")
    if not isinstance(url, str) or "/" not in url:
        raise DispatchYamlError(f'{where}: url: must be a host and a path, like "*/work/*"')
    host, slash, path = url.partition("/")
    _check(f"{where}: url", host, slash + path)
    return DispatchRule(host, slash + path, service)


def _check(where: str, host: str, path: str) -> None:
    """Refuse patterns that a deployment refuses.

    Raises:
        DispatchYamlError: a pattern is malformed, or too long.
    """
    if not _HOST.fullmatch(host):
        raise DispatchYamlError(
            f"{where}: the host must be lower-case, with * at its beginning only, got {host!r}"
        )
    if _is_ipv4(host):
        raise DispatchYamlError(f"{where}: the host must be a name, got the address {host}")
    if "*" in path[:-1]:
        raise DispatchYamlError(f"{where}: the path must have * at its end only, got {path!r}")
    for pattern in (host, path):
        if len(pattern) > _MAX_PATTERN:
            raise DispatchYamlError(
                f"{where}: host and path must have at most {_MAX_PATTERN} characters each, "
                f"got {len(pattern)}"
            )


def _is_ipv4(host: str) -> bool:
    try:
        return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False
