"""The kernel of the guests: Debian's package, downloaded and unpacked into a cache folder, never installed."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

# What a guest loads, in this order, each after the modules that it needs.
MODULES = [
    *("virtio_pci", "virtio_console", "virtio_net"),
    *("9pnet_virtio", "9p", "overlay"),
    *("crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"),
    *("veth", "sch_netem", "sch_tbf"),
]
# rdma_rxe asks for it by name as it makes a device, so no other module needs it. Kernels from 6.15 on have none.
OPTIONAL = {"crc32_generic"}

META_PACKAGE = "linux-image-amd64"


class Unavailable(Exception):
    """Something that this machine lacks, and how to get it."""


def cache_folder():
    """Where the unpacked kernel is kept."""
    named = os.environ.get("SOFT_ROCE_CACHE")
    general = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(named) if named else Path(general) / "earlybird-soft-roce").absolute()


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, folder):
        self.folder = folder
        self.version = next((folder / "lib/modules").iterdir()).name
        self.image = folder / "boot" / f"vmlinuz-{self.version}"

    def module_files(self):
        """The files of all modules, each one after those that it needs."""
        files = {}
        for module in MODULES:
            command = ["modprobe", "-d", self.folder, "-S", self.version, "--show-depends", module]
            listed = subprocess.run(command, text=True, capture_output=True, env=with_sbin())
            if listed.returncode != 0 and module not in OPTIONAL:
                raise Unavailable(f"kernel {self.version} has no module {module}: {listed.stderr.strip()}")
            lines = [line.split() for line in listed.stdout.splitlines()]
            files.update({words[1]: None for words in lines if words[0] == "insmod"})
        return [Path(file) for file in files]


def with_sbin():
    """The environment, with the folders of administration in the search path: a user's own may lack them."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def kernel():
    """The kernel in the cache folder, which is downloaded first if there is none."""
    cache = cache_folder()
    folder = cache / "kernel"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                fill(folder, cache / "unfinished")
    except OSError as error:
        raise Unavailable(f"the kernel cannot be kept in {cache}: {error}") from error
    return Kernel(folder)


def fill(folder, part):
    """Makes a folder with the kernel, by way of another one: it is complete if it is there."""
    shutil.rmtree(part, ignore_errors=True)
    try:
        download(part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def download(folder):
    """Unpacks the kernel package of this machine's Debian into a folder."""
    folder.mkdir()
    listed = said("apt-cache", "depends", META_PACKAGE, cwd=folder)
    packages = [line.split()[-1] for line in listed.splitlines() if "Depends: linux-image-" in line]
    if not packages:
        raise Unavailable(f"apt knows no package {META_PACKAGE}; run apt-get update (only Debian has that package)")
    said("apt-get", "download", packages[0], cwd=folder)
    package = next(folder.glob("*.deb"))
    said("dpkg-deb", "-x", package.name, ".", cwd=folder)
    package.unlink()
    for unused in ("usr", "boot/System.map-*"):
        for path in folder.glob(unused):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    said("depmod", "-b", str(folder), next((folder / "lib/modules").iterdir()).name, cwd=folder)


def said(*command, cwd):
    """What a command of the download has printed."""
    try:
        done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, env=with_sbin())
    except FileNotFoundError as error:
        raise Unavailable(f"the kernel package cannot be fetched: there is no {command[0]} here") from error
    if done.returncode != 0:
        why = "".join(done.stderr.strip().splitlines()[-1:])
        raise Unavailable(f"the kernel package cannot be fetched: {' '.join(command)}: {why}")
    return done.stdout
