"""Generates late/v1 from proto/late/v1: `python scripts/protos.py`, or `--check` to only compare.

The generated code is kept in the tree, so that nobody needs the generator to install or to run.
It is made with grpcio-tools 1.76 and no newer version: code of that one loads with every protobuf
from 6.33 to 7.x, code of later ones only with the newest, and clients of databases pin protobuf
too. As that generator itself wants an older protobuf than others do, it lives in an environment
of its own:

    make protos

`late/v1/digests.txt` says what was made of what. `tests/unit/test_protos.py` compares it with the
files, which needs no generator.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
PACKAGE = Path("late/v1")
DIGESTS = PACKAGE / "digests.txt"


def files(root: Path, kinds: Sequence[str]) -> list[Path]:
    """Files of the package below `root` that end in one of `kinds`, in order of their names."""
    found = (root / PACKAGE).iterdir()
    return sorted(path for path in found if path.name.endswith(tuple(kinds)))


def digests(root: Path) -> str:
    """One line per source and per generated file below `root`: digest and name."""
    made = files(root, ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"))
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(base).as_posix()}\n"
        for base, paths in ((ROOT, files(SOURCES, (".proto",))), (root, made))
        for path in paths
    ]
    return "".join(lines)


def generate(into: Path) -> None:
    """Write the generated files and their digests below `into`."""
    from grpc_tools import protoc

    sources = [str(path) for path in files(SOURCES, (".proto",))]
    with_services = [path for path in sources if "service " in Path(path).read_text()]
    includes = [f"-I{SOURCES}", f"-I{Path(protoc.__file__).parent / '_proto'}"]
    (into / PACKAGE).mkdir(parents=True, exist_ok=True)
    for options, paths in (
        ([f"--python_out={into}", f"--pyi_out={into}"], sources),
        ([f"--grpc_python_out={into}"], with_services),
    ):
        if protoc.main(["protoc", *includes, *options, *paths]) != 0:
            raise SystemExit("protoc failed")
    (into / DIGESTS).write_text(digests(into))


def main(arguments: Sequence[str]) -> int:
    if find_spec("grpc_tools") is None:
        print("protos: grpcio-tools is not installed here: make protos")
        return 2
    if list(arguments) != ["--check"]:
        generate(ROOT)
        print("protos:", ", ".join(path.name for path in files(ROOT, ("_pb2.py", "_grpc.py"))))
        return 0
    with TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted, found = (Path(folder) / DIGESTS).read_text(), (ROOT / DIGESTS).read_text()
    print("protos: as generated" if wanted == found else "protos: not what the sources give")
    return int(wanted != found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
