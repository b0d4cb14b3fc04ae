"""The interface over gRPC: producers and consumers."""
