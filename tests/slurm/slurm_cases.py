"""What people do under Slurm. Hosts n1, n2 and n3 are nodes of 8 processors; commands run on the host `head`."""

import re
import shlex

from hosts import Failed, until
from rig import case, python, recipe, sums

# Few iterations: what is tested is that ranks meet, not how fast they are.
BENCH = "earlybird bench --iters 50"

# Rounds without end, for a job that something else ends.
FOREVER = "earlybird bench --iters 100000000"


def lacks_python():
    return None if python() else "no environment has the Python package; ffi/python/check makes one"


@case("slurm")
def srun_on_one_node(rig):
    rig.sh(f"srun -N1 -n4 {BENCH}", "4 ranks, shm")
    sums(rig.sh("srun -N1 -n4 ./program"), 4)


@case("slurm")
def bench_without_options(rig):
    """It shows what it measures with as many ranks as there are."""
    rig.sh("srun -n2 earlybird bench", "One rank of 2 is 20 ms late", "Nothing is lost: wrong is 0.")


@case("slurm")
def srun_on_three_nodes(rig):
    rig.sh(f"srun -N3 -n3 {BENCH}", "3 ranks, ofi")
    sums(rig.sh("srun -N3 -n5 ./program"), 5)


@case("slurm")
def worlds_are_split_on_three_nodes(rig):
    """Groups within a node, and groups over several."""
    rig.sh("srun -N3 -n5 collectives", *(f"rank {rank} of 5: every result is right" for rank in range(5)))
    rig.sh("srun -N3 -n6 groups", *(f"rank {rank} of 6: done" for rank in range(6)))


@case("slurm")
def selftest_on_two_nodes(rig):
    rig.sh("srun -N2 -n2 earlybird selftest --quick", " 0 did not")


@case("slurm", "python")
def python_on_three_nodes(rig):
    program = "import earlybird; w = earlybird.World(); w.barrier(timeout=30); print('PYTHON', w.rank, w.size)"
    command = shlex.join([str(python()), "-c", program])
    rig.sh(f"srun -N3 -n3 {command}", *(f"PYTHON {rank} 3" for rank in range(3)))


@case("slurm")
def srun_mpi_pmi2(rig):
    rig.sh(f"srun --mpi=pmi2 -N1 -n2 {BENCH}", "2 ranks, shm")
    sums(rig.sh("srun --mpi=pmi2 -N3 -n3 ./program"), 3)


@case("slurm", "pmix")
def srun_mpi_pmix(rig):
    rig.sh(f"srun --mpi=pmix -N1 -n2 {BENCH}", "2 ranks, shm")
    sums(rig.sh("srun --mpi=pmix -N3 -n3 ./program"), 3)


@case("slurm")
def distribution_arbitrary(rig):
    """Rank 0 is not on the first node of the list."""
    (rig.work / "order").write_text("n3\nn1\nn2\nn1\n")
    output = rig.sh("SLURM_HOSTFILE=order srun -n4 --distribution=arbitrary sh -c './program; hostname -s >&2'")
    sums(output, 4)
    sums(rig.sh("srun -w n1,n2,n3 -n6 --distribution=cyclic ./program"), 6)
    sums(rig.sh("srun -w n1,n3 -n6 --distribution=plane=2 ./program"), 6)


@case("slurm")
def heterogeneous_step(rig):
    """The group with rank 0 is on a later node than the other one."""
    sums(rig.sh("srun -w n2 -n1 ./program : -w n1 -n2 ./program"), 3)
    groups = "#!/bin/bash\n#SBATCH -w n3 -n1\n#SBATCH hetjob\n#SBATCH -w n1 -n2\n"
    sums(rig.batch(groups + "srun --het-group=0,1 ./program"), 3)


@case("slurm")
def heterogeneous_job_without_srun(rig):
    groups = "#!/bin/bash\n#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N1 -n2\n"
    rig.batch(groups + f"{BENCH} -n 3", "3 ranks, shm")


@case("slurm")
def batch_script_with_srun(rig):
    sums(rig.batch("srun ./program", options="-N3 -n6"), 6)
    sums(rig.batch("srun -N2 -n2 ./program", options="-N3 -n6"), 2)


@case("slurm")
def batch_script_without_srun(rig):
    """The batch step has SLURM_PROCID=0 and SLURM_NTASKS=4, and is one process."""
    rig.batch(f"{BENCH} -n 3", "3 ranks, shm", options="-N2 -n4")
    rig.batch(f"{BENCH} -n 4", "4 ranks, shm", options="-N2 -n4")
    rig.batch(f"{BENCH}", "2 ranks, shm", options="-N2 -n4")
    rig.batch("earlybird train digits -n 4 --epochs 1 --compute-ms 0 --skew none --fire all", "4 ranks", options="-N1 -n4")
    rig.batch("earlybird selftest --quick -n 2", " 0 did not", options="-N1 -n4")
    rig.batch("earlybird run -n 3 -- ./program", "rank 2 of 3", options="-N1 -n4")
    sums(rig.batch("./program", options="-N1 -n4"), 1)


@case("slurm", "python")
def python_without_srun(rig):
    program = "import earlybird; w = earlybird.World(); print('PYTHON', w.rank, w.size)"
    rig.batch(shlex.join([str(python()), "-c", program]), "PYTHON 0 1", options="-N2 -n4")


@case("slurm")
def batch_script_submitted_in_a_step(rig):
    """sbatch hands the variables of the step on in which it was called."""
    (rig.work / "inner.sh").write_text(f"#!/bin/bash\n{BENCH} -n 3 && srun ./program\n")
    rig.sh("srun -n1 sbatch --wait -n4 --output=inner.out inner.sh")
    rig.check("inner.sh", rig.output("inner.out"), "3 ranks, shm")
    sums(rig.output("inner.out"), 4)
    # A step of several tasks: as docs/guides/launching.md advises.
    submit = "env -u SLURM_STEP_ID -u SLURM_STEPID sbatch --wait -n4 --output=again.out inner.sh"
    rig.sh(f"srun -N2 -n2 sh -c 'test $SLURM_PROCID = 1 || {submit}'")
    rig.check("inner.sh", rig.output("again.out"), "3 ranks, shm")


@case("slurm")
def interactive_shells(rig):
    """Slurm starts a shell as a step of one task: `salloc`, and `srun --pty`."""
    command = f"{BENCH} -n 3; ./program; exit"
    salloc = f"echo {shlex.quote(command)} | script --quiet --command 'salloc -N2 -n4' /dev/null"
    sums(rig.sh(salloc, "3 ranks, shm"), 1)
    pty = f"srun --pty -n1 bash -c {shlex.quote(command)}"
    sums(rig.sh(f"script --quiet --command {shlex.quote(pty)} /dev/null < /dev/null", "3 ranks, shm"), 1)
    sums(rig.sh("salloc -N2 -n4 srun ./program"), 4)
    sums(rig.sh("salloc -N2 -n4 srun --preserve-env -n2 ./program"), 2)


@case("slurm")
def the_number_of_ranks_is_not_sruns(rig):
    rig.sh(f"srun -n2 {BENCH} -n 3", "-n 3 was given, and srun started 2 ranks", fails=True)
    rig.sh(f"srun -n2 {BENCH} -n 2", "2 ranks, shm")


@case("slurm")
def a_task_that_is_no_rank(rig):
    """A rank never comes; the error says how ranks are started under Slurm."""
    lonely = "test $SLURM_PROCID = 1 && exit; EARLYBIRD_DEADLINE=2s exec ./program"
    rig.sh(f"srun -N2 -n2 sh -c '{lonely}'", "rank 1 did not come", "by the same srun?", fails=True)


@case("slurm")
def arrays(rig):
    """Four jobs of the same array at once, on the same nodes."""
    rig.batch("srun ./program > array.$SLURM_ARRAY_TASK_ID", options="--array=0-3 -N2 -n4")
    for task in range(4):
        sums(rig.output(f"array.{task}"), 4)


@case("slurm")
def four_steps_at_once(rig):
    steps = "for i in 1 2 3 4; do srun --exact -N3 -n6 ./program > step.$i & done; wait"
    rig.batch(steps, options="-N3 -n24")
    for step in range(1, 5):
        sums(rig.output(f"step.{step}"), 6)


def running(rig, started, count):
    """Waits until that number of processes runs on nodes."""
    until(60, f"{count} processes run", lambda: len(processes(rig)) >= count or started.poll() is not None)
    if started.poll() is not None:
        raise Failed(f"ended too soon:\n{rig.finish(started)}")


def processes(rig):
    """Ranks that run on nodes, and commands that have started some: pairs of a host and a process."""
    found = []
    for name, host in list(rig.hosts.items())[1:]:
        listed = rig.sh("pgrep -x earlybird || pgrep -x program || true", host=host)
        found += [(name, int(process)) for process in listed.split()]
    return found


def gone(rig):
    until(30, "no rank is left", lambda: not processes(rig))


@case("slurm")
def scancel(rig):
    (rig.work / "job.sh").write_text(f"#!/bin/bash\nsrun {FOREVER}\n")
    waiting = rig.start("sbatch --wait --job-name=long --output=job.out -N2 -n4 job.sh")
    running(rig, waiting, 4)
    rig.sh("scancel --name=long")
    rig.finish(waiting, fails=True)
    gone(rig)
    waiting = rig.start(f"sbatch --wait --job-name=long --output=job.out -N1 -n4 --wrap='{FOREVER} -n 4'")
    running(rig, waiting, 5)
    rig.sh("scancel --name=long")
    rig.finish(waiting, fails=True)
    gone(rig)


@case("slurm")
def kill_on_bad_exit(rig):
    """`srun -K` ends the step as soon as a rank fails; here the others would wait for it without end."""
    fails = "test $SLURM_PROCID = 2 && { sleep 2; exit 3; }; EARLYBIRD_DEADLINE=3600s exec ./program"
    rig.sh(f"srun -K -N3 -n3 sh -c '{fails}'", "task 2: Exited with exit code 3", fails=True)
    gone(rig)


@case("slurm")
def a_rank_that_dies(rig):
    """The others name it, and the job ends."""
    step = rig.start(f"EARLYBIRD_SILENCE=3s srun -N3 -n3 {FOREVER}")
    running(rig, step, 3)
    # No rank says that it has met the others.
    rig.sh("sleep 3")
    name, process = processes(rig)[1]
    rig.sh(f"kill -KILL {process}", host=rig.hosts[name])
    output = rig.finish(step, fails=True)
    rig.check(step.script, output, "rank 0 on n1: ", "rank 1 on n2 died")
    gone(rig)


@case("slurm")
def recipe_srun(rig):
    """docs/guides/hosts.md, word by word."""
    output = rig.batch(recipe("hosts.md", "**srun.**"), options="-N2 --ntasks-per-node=8")
    for rank in range(16):
        if output.count(f"rank {rank} of 16: saw ") != 2:
            raise Failed(f"rank {rank} of one of the two has not ended well:\n{output}")


@case("slurm")
def recipes_of_launching(rig):
    """docs/guides/launching.md, word by word."""
    sums(rig.batch(recipe("launching.md", "**A batch script with srun**")), 16)
    rig.batch(recipe("launching.md", "**A batch script without srun**"), "4 ranks, shm")


@case("slurm", "mpi")
def open_mpi_inside_a_job(rig):
    """mpirun's ranks have the variables of its daemons, which srun starts."""
    mpirun = "mpirun --allow-run-as-root --bind-to none"
    under(rig, "openmpi", f"{mpirun} -n 4 -x EARLYBIRD_STORE=tcp:n1:29400 ./program", "-N2 -n4")
    under(rig, "openmpi", f"{mpirun} -n 3 ./program", "-N1 -n4")


@case("slurm", "mpi")
def mpich_inside_a_job(rig):
    under(rig, "mpich", "EARLYBIRD_STORE=tcp:n1:29400 mpiexec -n 4 ./program", "-N2 -n4")
    under(rig, "mpich", "mpiexec -n 3 ./program", "-N1 -n4")


def under(rig, mpi, command, options):
    ranks = int(re.search(r"-n (\d+)", command)[1])
    path = rig.wheels.programs(mpi)
    sums(rig.batch(f"export PATH={path}:$PATH\n{command}", options=options), ranks)
