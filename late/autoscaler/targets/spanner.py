"""The size of a Spanner instance, set through Google's own client: InstanceAdmin.

An update is a long-running operation: it is begun once and checked at every later look, so that a
slow one blocks nothing. The service refuses a second one meanwhile (FAILED_PRECONDITION), even
when another controller began the first: the service is the last fence.
"""

from __future__ import annotations

import os
import re
from typing import Any

from google.api_core import exceptions as api
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud.spanner_admin_instance_v1 import InstanceAdminClient, types
from google.protobuf.field_mask_pb2 import FieldMask

from late.autoscaler.policy import Units
from late.autoscaler.targets.sizer import PendingResize, ResizeError
from late.errors import ConfigError

TIMEOUT_S = 30.0
_NAME = re.compile(r"projects/[a-z0-9.:-]{1,80}/instances/[a-z0-9-]{1,64}\Z")


def client() -> Any:
    """Make Google's client with the default credentials, or for the emulator in the environment.

    Raises:
        ConfigError: there are no credentials.
    """
    host = os.environ.get("SPANNER_EMULATOR_HOST")
    try:
        if not host:
            return InstanceAdminClient()
        import grpc
        from google.cloud.spanner_admin_instance_v1.services.instance_admin.transports import (
            InstanceAdminGrpcTransport,
        )

        transport = InstanceAdminGrpcTransport(channel=grpc.insecure_channel(host))
        return InstanceAdminClient(transport=transport)
    except DefaultCredentialsError as error:
        raise ConfigError(f"no credentials for Spanner's administration: {error}") from error


class SpannerSizer:
    """One instance, in nodes or processing units. Call it from one thread at a time."""

    def __init__(self, instance: str, units: Units, api_client: Any = None) -> None:
        if not _NAME.match(instance):
            raise ConfigError(
                f"not an instance: {instance[:200]!r}; expected projects/PROJECT/instances/INSTANCE"
                ", in lower case as Google's names are"
            )
        self._instance, self._units = instance, units
        self._client: Any = client() if api_client is None else api_client

    @property
    def name(self) -> str:
        return self._instance.rpartition("/")[2]

    def size(self) -> int:
        try:
            # No retry by the client: the loop paces the tries and logs each of them.
            found = self._client.get_instance(name=self._instance, timeout=TIMEOUT_S, retry=None)
        except (api.GoogleAPIError, GoogleAuthError) as error:
            raise failed(error) from error
        if "autoscaling_config" in found:
            raise ResizeError(
                "FAILED_PRECONDITION", "Spanner's own autoscaler sizes this instance: switch it off"
            )
        return int(found.node_count if self._units == "nodes" else found.processing_units)

    def resize(self, before: int, size: int) -> PendingResize:
        field = "node_count" if self._units == "nodes" else "processing_units"
        wanted = types.Instance(name=self._instance, **{field: size})
        try:
            operation = self._client.update_instance(
                instance=wanted, field_mask=FieldMask(paths=[field]), timeout=TIMEOUT_S, retry=None
            )
        except (api.GoogleAPIError, GoogleAuthError) as error:
            raise failed(error) from error
        return _Update(operation)


class _Update:
    def __init__(self, operation: Any) -> None:
        self._operation = operation

    def done(self) -> bool:
        try:
            if not self._operation.done():
                return False
            self._operation.result(timeout=TIMEOUT_S)
        except (api.GoogleAPIError, GoogleAuthError) as error:
            raise failed(error) from error
        return True


def failed(error: Exception) -> ResizeError:
    """Turn Google's error into ours: the name of the status, and the first line of the text."""
    code = getattr(error, "grpc_status_code", None)
    cause = code.name if code is not None else type(error).__name__
    text = str(getattr(error, "message", None) or error).strip().splitlines() or [""]
    return ResizeError(cause, text[0][:300])
