"""Spanner's InstanceAdmin as the service answers, for Google's own client: a gRPC server.

The emulator creates and reads instances and refuses to update them, so the part that resizes is
played by this: an update is an operation that ends when the test says so, a second one meanwhile is
FAILED_PRECONDITION, and any call can be made to fail with a status.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.cloud.spanner_admin_instance_v1 import types
from google.longrunning import operations_pb2
from google.protobuf import any_pb2
from google.rpc import status_pb2

OPERATION = "projects/p/instances/shop/operations/1"


class InstanceAdmin:
    """One instance, `projects/p/instances/shop`; `with` starts and stops its server."""

    def __init__(self, nodes: int = 3) -> None:
        self.nodes = nodes
        self.slow = False
        self.code: grpc.StatusCode | None = None
        self.fails_later: grpc.StatusCode | None = None
        self.managed = False
        """Whether Spanner's own autoscaler sizes the instance."""
        self.updates: list[tuple[str, int]] = []
        self._wanted: int | None = None
        self._server = grpc.server(ThreadPoolExecutor(2))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        admin = {
            "GetInstance": grpc.unary_unary_rpc_method_handler(
                self._get, types.GetInstanceRequest.deserialize, types.Instance.serialize
            ),
            "UpdateInstance": grpc.unary_unary_rpc_method_handler(
                self._update, types.UpdateInstanceRequest.deserialize, _bytes
            ),
        }
        operations = {
            "GetOperation": grpc.unary_unary_rpc_method_handler(
                self._operation, operations_pb2.GetOperationRequest.FromString, _bytes
            )
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "google.spanner.admin.instance.v1.InstanceAdmin", admin
                ),
                grpc.method_handlers_generic_handler("google.longrunning.Operations", operations),
            )
        )

    def __enter__(self) -> InstanceAdmin:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _instance(self) -> types.Instance:
        made = types.Instance(
            name="projects/p/instances/shop",
            node_count=self.nodes,
            processing_units=self.nodes * 1000,
        )
        if self.managed:
            made.autoscaling_config = types.AutoscalingConfig()
        return made

    def _get(self, request: types.GetInstanceRequest, context: grpc.ServicerContext) -> Any:
        if request.name != "projects/p/instances/shop":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Instance not found: {request.name}")
        return self._instance()

    def _update(self, request: types.UpdateInstanceRequest, context: grpc.ServicerContext) -> Any:
        if self.code is not None:
            context.abort(self.code, "refused by the test")
        if self._wanted is not None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another update is in progress")
        (field,) = request.field_mask.paths
        size = int(getattr(request.instance, field))
        self.updates.append((field, size))
        self._wanted = size if field == "node_count" else size // 1000
        return self._state()

    def _operation(self, request: Any, context: grpc.ServicerContext) -> Any:
        return self._state()

    def _state(self) -> operations_pb2.Operation:
        made = operations_pb2.Operation(name=OPERATION)
        made.metadata.Pack(types.UpdateInstanceMetadata.pb(types.UpdateInstanceMetadata()))
        if self.slow:
            return made
        made.done = True
        if self.fails_later is not None:
            made.error.CopyFrom(
                status_pb2.Status(code=self.fails_later.value[0], message="later, by the test")
            )
        else:
            assert self._wanted is not None
            self.nodes = self._wanted
            packed = any_pb2.Any()
            packed.Pack(types.Instance.pb(self._instance()))
            made.response.CopyFrom(packed)
        self._wanted = None
        return made


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found
