"""Messages and services of gRPC: generated from `proto/late/v1` by `scripts/protos.py`.

`task_pb2`, `handler_pb2`, `queue_pb2` hold the messages, `handler_pb2_grpc`, `queue_pb2_grpc` the
services. They need `grpcio` and `protobuf` (`pip install 'late-queue[grpc]'`), so nothing else of
`late` imports them before a target or a server asks for them.
"""
