"""Attempts that services execute, over gRPC and HTTP."""
