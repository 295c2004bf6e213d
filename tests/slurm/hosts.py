"""Hosts on one machine: each has a name, a network, processes and mounts of its own. A switch joins them."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

# What a host needs of this machine, and the Debian packages that have it.
PROGRAMS = {
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}

class Failed(Exception):
    """A host, a daemon or a case failed, for this reason."""


def until(seconds, what, is_done):
    """Asks again and again until it is done; fails after a time."""
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def ip(*arguments, network=None):
    inside = ["nsenter", "--target", str(network), "--net", "--"] if network else []
    done = subprocess.run([*inside, "ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Space:
    """Namespaces, held by a process that does nothing. Everything in them ends with it."""

    def __init__(self, *namespaces, prepare=":"):
        # The first process is bash, which waits for orphans, too. When it ends, the kernel kills all others.
        # unshare ends with this process, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child"]
        command += ["--pid", "--mount-proc", *namespaces]
        script = f"set -e; {prepare}\necho ready; while :; do sleep 3600 & wait; done"
        self.holder = subprocess.Popen(
            [*command, "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said = self.holder.stdout.readline()
        if said != "ready\n":
            self.end()
            raise Failed(f"no namespaces: {said.strip()}")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.holder.pid, signal.SIGKILL)
        self.holder.wait()
        self.holder.stdout.close()


class Host(Space):
    """A host. Its /run is empty at first, and files of the machine can be replaced by others."""

    def __init__(self, name, address, replaced):
        self.name, self.address = name, address
        mounts = [f"mount --bind {source} {target}" for target, source in replaced.items()]
        prepare = "\n".join([f"hostname {name}", "mount -t tmpfs tmpfs /run", *mounts])
        super().__init__("--net", "--uts", "--mount", prepare=prepare)

    def inside(self, command, directory="/"):
        """The command line that runs a command on this host."""
        namespaces = ["--mount", "--uts", "--net", "--pid"]
        return ["nsenter", "--target", str(self.pid), *namespaces, f"--wd={directory}", "--", *map(str, command)]


class Network:
    """Hosts by name, and a switch between them; a context manager."""

    def __init__(self, names, folder):
        self.names, self.folder = names, folder
        self.spaces, self.hosts = [], {}

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The cables are removed with their ends, and the mounts with their namespace.
        for space in self.spaces:
            space.end()

    def build(self):
        addresses = {name: f"10.78.0.{number}" for number, name in enumerate(self.names, start=1)}
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        names = self.folder / "hosts"
        names.write_text("\n".join(lines) + "\n")
        etc = self.folder / "etc"
        etc.mkdir(exist_ok=True)
        switch = Space("--net")
        self.spaces.append(switch)
        ip("link", "add", "hub", "type", "bridge", network=switch.pid)
        ip("link", "set", "hub", "up", network=switch.pid)
        for name, address in addresses.items():
            replaced = {"/etc/hosts": names}
            if Path("/etc/slurm").is_dir():
                replaced["/etc/slurm"] = etc
            host = Host(name, address, replaced)
            self.spaces.append(host)
            self.hosts[name] = host
            port = f"port-{name}"
            cable = ["link", "add", "net0", "netns", str(host.pid), "type", "veth", "peer", "name", port]
            ip(*cable, "netns", str(switch.pid))
            ip("link", "set", port, "master", "hub", "up", network=switch.pid)
            ip("link", "set", "lo", "up", network=host.pid)
            ip("addr", "add", f"{address}/24", "dev", "net0", network=host.pid)
            ip("link", "set", "net0", "up", network=host.pid)


def lacks():
    """Why there can be no hosts here; None if there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is missing; install {package}"
    try:
        Space("--net", "--uts", "--mount").end()
    except Failed as problem:
        return str(problem)
    return None
