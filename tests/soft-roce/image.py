"""The initial file system of a guest: busybox, the modules of the kernel, `init`, and what a run is about."""

import lzma
import shutil
import stat
from pathlib import Path

from kernel import Unavailable, with_sbin

HERE = Path(__file__).resolve().parent


def common_files(kernel):
    """What is the same in every run, as (path, mode, content)."""
    yield "bin/busybox", 0o755, Path(static_busybox()).read_bytes()
    yield "init", 0o755, (HERE / "init").read_bytes()
    yield "rig/device", 0o644, (HERE / "device").read_bytes()
    for number, file in enumerate(kernel.module_files()):
        content = file.read_bytes()
        # A guest loads them in the order of their names.
        yield f"modules/{number:03}-{file.name}", 0o644, lzma.decompress(content) if file.suffix == ".xz" else content


def static_busybox():
    """The path of a busybox that runs before any library is there."""
    path = shutil.which("busybox", path=with_sbin()["PATH"])
    # A program that is linked dynamically names its loader near its beginning.
    if path is None or b"/ld-linux" in Path(path).read_bytes()[:4096]:
        raise Unavailable("a busybox that is linked statically is missing (Debian: apt install busybox-static)")
    return path


def archive(files):
    """These files, given as (path, mode, content), as an archive that the kernel unpacks (cpio, format `newc`)."""
    entries, folders = [], {}
    for path, mode, content in files:
        folders.update({str(folder): None for folder in reversed(Path(path).parents) if str(folder) != "."})
        entries.append((path, stat.S_IFREG | mode, content))
    directories = [(folder, stat.S_IFDIR | 0o755, b"") for folder in folders]
    whole = b""
    for number, (path, mode, content) in enumerate([*directories, *entries, ("TRAILER!!!", 0, b"")], 1):
        name = path.encode() + b"\0"
        # inode, mode, user, group, links, time, size, device (2), device of the file (2), length of the name, checksum
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        whole += padded(header) + padded(content)
    return whole


def padded(part):
    """Each part of an archive ends at a multiple of four bytes."""
    return part + bytes(-len(part) % 4)
