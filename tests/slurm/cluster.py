"""Slurm on the hosts of a network: a controller, and a daemon on each node, with munge everywhere."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

from hosts import Failed, until

# Programs of Slurm's, and the Debian packages that have them.
PROGRAMS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"}
PACKAGES = ["slurm-wlm", "slurm-wlm-basic-plugins", "munge", "libpmix-dev"]

# How long the daemons may take until all nodes are idle.
PATIENCE = 60

# Nodes have more processors than this machine, so that several steps fit. Nothing needs cgroups.
CONFIG = """
ClusterName=rig
SlurmctldHost={head}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1
MpiDefault=none
ReturnToService=2
LaunchParameters=use_interactive_step
KillWait=2
MinJobAge=300
NodeName={nodes} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=NO
"""


def are_there():
    """Whether the packages are installed. Slurm's plugin for PMIx needs a library that it does not depend on."""
    libraries = Path("/usr/lib").glob("*/libpmix.so")
    return all(map(shutil.which, PROGRAMS)) and any(libraries)


class Cluster:
    """A running Slurm; a context manager. The first host has the controller, and users work there."""

    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        self.head, *self.nodes = network.hosts.values()
        self.daemons = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()

    def daemon(self, host, *command):
        log = self.folder / f"{Path(command[0]).name}.{host.name}.out"
        with log.open("w") as output:
            started = subprocess.Popen(
                host.inside(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.daemons.append(started)

    def start(self):
        for name in ["state", "munge", *(f"spool.{node.name}" for node in self.nodes)]:
            (self.folder / name).mkdir(mode=0o755)
        nodes = ",".join(node.name for node in self.nodes)
        config = CONFIG.format(head=self.head.name, folder=self.folder, nodes=nodes)
        (self.folder / "etc" / "slurm.conf").write_text(config)
        # The hosts share /tmp, and each has its own /run.
        (self.folder / "etc" / "mpi.conf").write_text("PMIxCliTmpDirBase=/run\n")
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for host in [self.head, *self.nodes]:
            own = self.folder / "munge" / host.name
            own.mkdir(mode=0o755)
            files = [f"--{kind}-file={own / kind}" for kind in ("log", "pid", "seed")]
            subprocess.run(host.inside(["mkdir", "-m", "755", "/run/munge"]), check=True)
            self.daemon(host, shutil.which("munged"), "--foreground", "--force", f"--key-file={key}", *files)
        self.daemon(self.head, shutil.which("slurmctld"), "-D")
        for node in self.nodes:
            self.daemon(node, shutil.which("slurmd"), "-D")
        try:
            until(PATIENCE, "Slurm's nodes are idle", self.is_idle)
        except Failed as problem:
            raise Failed(f"{problem}\n{self.logs()}") from None

    def ask(self, *command):
        """What a command of Slurm's prints on the first host; nothing if it fails."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked = subprocess.run(self.head.inside(command), capture_output=True, text=True, timeout=10)
            return asked.stdout.strip()
        return ""

    def is_idle(self):
        for daemon in self.daemons:
            if daemon.poll() is not None:
                raise Failed(f"{' '.join(daemon.args)} ended with {daemon.returncode}")
        states = self.ask("sinfo", "--noheader", "--Node", "--format=%T").split()
        return states == ["idle"] * len(self.nodes)

    def clear(self):
        """Cancels what a case left, and waits until all nodes are idle again."""
        if not self.is_idle():
            self.ask("scancel", "--full", "--signal=KILL", "--state=RUNNING", "--user=root")
            self.ask("scancel", "--user=root")
            until(PATIENCE, "Slurm's nodes are idle again", self.is_idle)

    def lacks_pmix(self):
        """Why `srun --mpi=pmix` cannot run; None if it can."""
        command = self.head.inside(["srun", "--mpi=pmix", "-n1", "true"])
        tried = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        return f"srun --mpi=pmix fails: {tried.stderr.strip()}" if tried.returncode != 0 else None

    def logs(self):
        """The end of each daemon's log."""
        told = []
        for file in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            lines = file.read_text(errors="replace").splitlines()[-15:]
            told += [f"-- {file.name}", *lines]
        return "\n".join(told)
