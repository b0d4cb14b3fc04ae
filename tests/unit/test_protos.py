"""The code in late/v1 is what its sources give, and loads with what is installed."""

from __future__ import annotations

import subprocess
import sys

from scripts import protos


def test_the_generated_code_belongs_to_the_sources() -> None:
    """A source that was changed, or a generated file that was, has another digest."""
    assert (protos.ROOT / protos.DIGESTS).read_text() == protos.digests(protos.ROOT)


def test_the_generated_code_loads_without_a_warning() -> None:
    """Code of another generator warns or refuses when protobuf is much newer or older."""
    code = "from late.v1 import handler_pb2_grpc, queue_pb2_grpc"
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=protos.ROOT, check=True)


def test_importing_late_needs_no_grpc() -> None:
    code = "import sys, late; late.App; late.Retry; assert 'grpc' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=protos.ROOT, check=True)
