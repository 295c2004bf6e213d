"""Open MPI 5 and MPICH 5 on the hosts a and b, without Slurm. A stand-in for ssh starts processes on the other host."""

from rig import case, recipe, sums

BENCH = "earlybird bench --iters 50"


def programs(rig, mpi):
    rig.path = [rig.wheels.programs(mpi), rig.tools]


# Only root can make hosts, and Open MPI warns root of itself. The hosts have more ranks than this machine has cores.
OPEN_MPI = """
export PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_plm_ssh_agent="$(command -v remote-shell)"
"""


@case("mpi", "mpi")
def open_mpi_on_one_host(rig):
    programs(rig, "openmpi")
    rig.sh(f"{OPEN_MPI}mpirun -n 3 --oversubscribe {BENCH}", "3 ranks, shm")
    sums(rig.sh(f"{OPEN_MPI}mpirun -n 3 --oversubscribe ./program"), 3)


@case("mpi", "mpi")
def open_mpi_on_two_hosts(rig):
    programs(rig, "openmpi")
    two = f"{OPEN_MPI}mpirun -n 4 --host a:2,b:2 -x EARLYBIRD_STORE=tcp:a:29400"
    rig.sh(f"{two} {BENCH}", "4 ranks, ofi")
    rig.sh(f"{OPEN_MPI}mpirun -n 4 --host a:2,b:2 ./program", "EARLYBIRD_STORE=tcp:HOST:PORT", fails=True)


@case("mpi", "mpi")
def recipe_open_mpi(rig):
    """docs/guides/hosts.md, word by word."""
    programs(rig, "openmpi")
    sums(rig.sh(OPEN_MPI + recipe("hosts.md", "**mpirun.**")), 16)


@case("mpi", "mpi")
def mpich_on_one_host(rig):
    programs(rig, "mpich")
    rig.sh(f"mpiexec -n 3 {BENCH}", "3 ranks, shm")
    sums(rig.sh("mpiexec -n 3 ./program"), 3)


@case("mpi", "mpi")
def recipe_mpich(rig):
    """docs/guides/hosts.md, word by word."""
    programs(rig, "mpich")
    shell = "export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=remote-shell\n"
    sums(rig.sh(shell + recipe("hosts.md", "**mpiexec.**")), 16)
