"""Open MPI and MPICH, from wheels, and the remote shell by which they start processes on other hosts."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

PACKAGES = {"openmpi": "openmpi>=5,<6", "mpich": "mpich>=5,<6"}

# The remote shell: hands its command, its folder and its output over to the rig, and ends as the command does. Launchers
# give it options, a host and a command of sh's, as to ssh.
REMOTE_SHELL = """#!/usr/bin/env {python}
import json, os, socket, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    words = words[2 if words[0] in ("-o", "-l", "-p", "-i", "-F") else 1:]
asked = json.dumps({{"host": words[0], "command": " ".join(words[1:]), "directory": os.getcwd()}}).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rig:
    rig.connect({socket!r})
    socket.send_fds(rig, [asked], [0, 1, 2])
    sys.exit(int(rig.recv(16) or b"255"))
"""


class Wheels:
    """The wheels, each in an environment of its own; installed when the first case wants them."""

    def __init__(self, folder):
        self.folder, self.problem = folder, None
        self.installed = False

    def lacks(self):
        """Why they are missing; None if they are there."""
        if not self.installed:
            self.installed = True
            self.problem = self.install()
        return self.problem

    def install(self):
        for name, wanted in PACKAGES.items():
            environment = self.folder / name
            made = subprocess.run([sys.executable, "-m", "venv", environment], capture_output=True, text=True)
            if made.returncode != 0:
                return f"venv cannot make an environment: {made.stdout.strip()}"
            pip = [environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
            done = subprocess.run([*pip, wanted], capture_output=True, text=True)
            if done.returncode != 0:
                return f"{wanted} cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
        return None

    def programs(self, name):
        """The folder with mpirun."""
        return self.folder / name / "bin"


class Shells:
    """Starts what the remote shell asks for, on the host that it names; a context manager."""

    def __init__(self, network, folder, tools):
        self.network, self.path, self.tools = network, str(folder / "shells"), tools
        script = tools / "remote-shell"
        script.write_text(REMOTE_SHELL.format(python=os.path.basename(sys.executable), socket=self.path))
        script.chmod(0o755)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def __enter__(self):
        self.socket.bind(self.path)
        self.socket.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        # What was started ends with its host.
        self.socket.close()
        os.unlink(self.path)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                asking, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=[asking], daemon=True).start()

    def serve(self, asking):
        with asking:
            text, streams, *_ = socket.recv_fds(asking, 1 << 20, 3)
            asked = json.loads(text)
            host = self.network.hosts[asked["host"]]
            # A remote shell does not hand the environment on. The tools are installed on all hosts.
            own = {"PATH": f"{self.tools}:{os.environ['PATH']}", "HOME": asked["directory"], "TMPDIR": "/run"}
            started = subprocess.Popen(
                host.inside(["sh", "-c", asked["command"]], directory=asked["directory"]),
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                env=own,
                start_new_session=True,
            )
            for stream in streams:
                os.close(stream)
            threading.Thread(target=self.end_with, args=[asking, started], daemon=True).start()
            status = started.wait()
            with contextlib.suppress(OSError):
                asking.send(str(status if status >= 0 else 128 - status).encode())

    @staticmethod
    def end_with(asking, started):
        """Ends what was started when the remote shell ends, as a connection that is closed does."""
        with contextlib.suppress(OSError):
            asking.recv(1)
        if started.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGHUP)
