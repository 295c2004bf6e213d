"""Open MPI 5 and MPICH 5 on the hosts a and b, without Slurm. A stand-in for ssh starts processes on the other host."""

from pathlib import Path

from rig import case, link_with_library, recipe, sums

BENCH = "earlybird bench --iters 50"
# Rank 0 joins no world.
ALONE = "env EARLYBIRD_DEADLINE=2s sh -c 'if [ {} = 0 ]; then sleep 20; else ./program; fi'"


def programs(rig, mpi):
    rig.path = [rig.wheels.programs(mpi), rig.tools]


# Only root can make hosts, and Open MPI warns root of itself. The hosts have more ranks than this machine has cores.
OPEN_MPI = """
export PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_plm_ssh_agent="$(command -v remote-shell)"
"""

HYDRA = "export HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXEC=remote-shell\n"


def with_mpi(rig, mpi):
    """Builds the program that uses MPI, too."""
    prefix = rig.wheels.programs(mpi).parent
    mpi = [f"-I{prefix}/include", f"-L{prefix}/lib", "-lmpi", f"-Wl,-rpath,{prefix}/lib"]
    link_with_library(Path(__file__).parent / "with_mpi.c", rig.work / "with_mpi", *mpi)


@case("mpi", "mpi")
def open_mpi_on_one_host(rig):
    programs(rig, "openmpi")
    rig.sh(f"{OPEN_MPI}mpirun -n 3 --oversubscribe {BENCH}", "3 ranks, shm")
    sums(rig.sh(f"{OPEN_MPI}mpirun -n 3 --oversubscribe ./program"), 3)


@case("mpi", "mpi")
def open_mpi_on_two_hosts(rig):
    programs(rig, "openmpi")
    two = f"{OPEN_MPI}mpirun -n 4 --host a:2,b:2"
    rig.sh(f"{two} {BENCH}", "4 ranks, ofi")
    sums(rig.sh(f"{two} ./program"), 4)
    # A second program of the same ranks, and a secret on one host alone.
    rig.sh(f"{two} sh -c './program && EARLYBIRD_DEADLINE=2s ./program'", "joining the world", fails=True)
    secret = "export EARLYBIRD_SECRET=0123456789abcdef0123456789abcdef\n"
    rig.sh(f"{secret}{two} ./program", "pass it to all ranks", fails=True)
    rig.sh(f"{two} -x EARLYBIRD_STORE=tcp:a:29400 {BENCH}", "4 ranks, ofi")
    rig.sh(f"{two} {ALONE.format('$OMPI_COMM_WORLD_RANK')}", "not all ranks have come", fails=True)


@case("mpi", "mpi")
def open_mpi_and_mpi_in_one_program(rig):
    programs(rig, "openmpi")
    with_mpi(rig, "openmpi")
    two = f"{OPEN_MPI}mpirun -n 4 --host a:2,b:2 ./with_mpi"
    rig.sh(f"{two} before", "both sum to 6")
    rig.sh(f"{two} after", "must call MPI_Init before", fails=True)


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
def mpich_on_two_hosts(rig):
    programs(rig, "mpich")
    two = f"{HYDRA}mpiexec -n 4 -ppn 2 -hosts a,b"
    rig.sh(f"{two} {BENCH}", "4 ranks, ofi")
    sums(rig.sh(f"{two} ./program"), 4)
    rig.sh(f"{two} {ALONE.format('$PMI_RANK')}", "not all ranks have come", fails=True)
    # The first program has ended the launcher's conversation.
    rig.sh(f"{two} sh -c './program && ./program'", "EARLYBIRD_STORE=tcp:HOST:PORT", fails=True)


@case("mpi", "mpi")
def mpich_and_mpi_in_one_program(rig):
    programs(rig, "mpich")
    with_mpi(rig, "mpich")
    # MPICH's UCX reaches no namespace of the same machine. By this variable a rank believes that there are several hosts.
    several = "mpiexec -n 3 env MPI_LOCALNRANKS=1 ./with_mpi"
    rig.sh(f"{several} before", "both sum to 3")
    rig.sh(f"{several} after", "must call MPI_Init before", fails=True)


@case("mpi", "mpi")
def recipe_mpich(rig):
    """docs/guides/hosts.md, word by word."""
    programs(rig, "mpich")
    sums(rig.sh(HYDRA + recipe("hosts.md", "**mpiexec.**")), 16)
