"""Policies of IAM and configurations of keys: stored and answered, not enforced.

Every caller may do everything, so TestIamPermissions returns all permissions that it is asked for.
Tasks are stored unencrypted, even if a location names a key.

Source: cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues
"""

import hashlib
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import errors, messages
from rollforward.local.cloudtasks.protocol.errors import Refused

MAX_POLICY_BYTES = 64 * 1024

_POLICY, _KEY = "iam-policy", "cmek-config"
_KEY_SUFFIX = "/cmekConfig"
_MASKED = {"bindings", "etag", "version", "audit_configs"}


class Policies:
    """The calls of IAM and of keys, over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, request: Any) -> Any:
        """Return a queue's policy; one that was never set is empty.

        Raises:
            Refused: NOT_FOUND: the queue is missing.
        """
        self._engine.queues.get(request.resource)
        return self._stored(request.resource)

    def set(self, request: Any) -> Any:
        """Store a queue's policy, or the parts of it that the mask names, and return it.

        Raises:
            Refused: the queue is missing, the policy is too large, or it changed since it was read.
        """
        self._engine.queues.get(request.resource)
        stored, policy = self._stored(request.resource), request.policy
        if policy.etag and policy.etag != stored.etag:
            raise errors.policy_changed()
        masked = set(request.update_mask.paths) & _MASKED
        for field in _MASKED - masked if masked else ():
            policy.ClearField(field)
            if stored.DESCRIPTOR.fields_by_name[field].is_repeated:
                getattr(policy, field).extend(getattr(stored, field))
            else:
                setattr(policy, field, getattr(stored, field))
        policy.ClearField("etag")
        if policy.ByteSize() > MAX_POLICY_BYTES:
            raise errors.invalid(f"The policy must not be larger than {MAX_POLICY_BYTES} bytes.")
        self._engine.policies.put(_POLICY, request.resource, policy.SerializeToString())
        return self._stored(request.resource)

    def test(self, request: Any) -> Any:
        """Return the requested permissions; none if the queue is missing."""
        try:
            self._engine.queues.get(request.resource)
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            return iam_policy_pb2.TestIamPermissionsResponse()
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=request.permissions)

    def forget(self, queue_name: str) -> None:
        """Forget the policy of a queue that was deleted."""
        self._engine.policies.put(_POLICY, queue_name, b"")

    def _stored(self, resource: str) -> Any:
        raw = self._engine.policies.get(_POLICY, resource)
        policy = policy_pb2.Policy.FromString(raw)
        policy.etag = hashlib.sha256(raw).digest()[:8]
        return policy

    def get_key(self, request: Any) -> Any:
        """Return a location's configuration of keys; one that was never set names no key."""
        self._check_key_name(request.name)
        config = messages.CmekConfig.FromString(self._engine.policies.get(_KEY, request.name))
        config.name = request.name
        return config

    def update_key(self, request: Any) -> Any:
        """Store a location's configuration of keys, and return it.

        Raises:
            Refused: the name is none of a configuration here, or the key's name is too long.
        """
        config = request.cmek_config
        self._check_key_name(config.name)
        if config.ByteSize() > MAX_POLICY_BYTES:
            raise errors.invalid("CmekConfig.kms_key is too long.")
        self._engine.policies.put(_KEY, config.name, config.SerializeToString())
        return config

    def _check_key_name(self, name: str) -> None:
        if not name.endswith(_KEY_SUFFIX):
            raise errors.invalid(
                'The name must be formatted: "projects/<PROJECT_ID>/locations/<LOCATION_ID>'
                f'{_KEY_SUFFIX}".'
            )
        self._engine.place.check_parent(name.removesuffix(_KEY_SUFFIX))
