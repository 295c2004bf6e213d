"""What cases share: the tools that they start, commands on hosts, and how a case is reported."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts import Failed

ROOT = Path(__file__).resolve().parents[2]

# A case that takes longer than this hangs. It is longer than ranks wait for each other (EARLYBIRD_DEADLINE, 60 s).
DEADLINE = 90

# Every case, in the order of the source: its name, its function, and the needs that it has beside those of its part.
CASES = {"slurm": [], "mpi": []}


def case(part, *needs):
    """Makes a function a case of a part; its name is the function's."""

    def register(function):
        CASES[part].append((function.__name__.replace("_", "-"), function, needs))
        return function

    return register


def build(folder):
    """Builds the command, and programs in C and Rust with the library; returns the folder with them."""
    command, example = ["--package", "earlybird", "--features", "cli"], ["--package", "earlybird", "--example", "groups"]
    for what in (command, example, ["--package", "earlybird-c", "--lib"]):
        subprocess.run(["cargo", "build", "--quiet", *what], cwd=ROOT, check=True)
    tools = folder / "tools"
    tools.mkdir()
    (tools / "earlybird").symlink_to(built() / "earlybird")
    (tools / "groups").symlink_to(built() / "examples/groups")
    for name, source in ("program", "quorum"), ("collectives", "collectives"):
        link_with_library((ROOT / "ffi/c/examples" / source).with_suffix(".c"), tools / name)
    return tools


def built():
    """The folder with what `build` has built."""
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "debug"


def link_with_library(source, program, *more):
    """Compiles a program in C with the library, and with more options of the compiler's."""
    libraries = [built() / "libearlybird_c.a", "-lgcc_s", "-lpthread", "-lm", "-ldl"]
    subprocess.run(["cc", source, "-I", ROOT / "ffi/c/include", *libraries, *more, "-o", program], check=True)


def python():
    """The interpreter that has the package, if ffi/python/check has made one."""
    found = ROOT / "ffi/python/target/environment/bin/python"
    has_package = [found, "-c", "import earlybird"]
    if found.exists() and subprocess.run(has_package, capture_output=True).returncode == 0:
        return found
    return None


def recipe(guide, beginning):
    """The first block of code in a guide after the line that begins so."""
    lines = iter((ROOT / "docs/guides" / guide).read_text().splitlines())
    for line in lines:
        if line.startswith(beginning):
            break
    else:
        raise Failed(f"docs/guides/{guide} has no line that begins with {beginning!r}")
    block = []
    for line in lines:
        if line.startswith("```"):
            if block:
                return "\n".join(block[1:]) + "\n"
            block.append(line)
        elif block:
            block.append(line)
    raise Failed(f"docs/guides/{guide} has no block of code after {beginning!r}")


class Rig:
    """Runs commands on hosts, for one case after the other."""

    def __init__(self, folder, tools, hosts, wheels, cluster=None):
        self.folder, self.tools, self.hosts, self.wheels, self.cluster = folder, tools, hosts, wheels, cluster
        # Programs that a case finds before those of this machine.
        self.path = [tools]
        self.work, self.end = folder, 0.0
        # Processes that a case has started and that may still run.
        self.running = []

    def begin(self, name):
        self.work = self.folder / f"case-{name}"
        self.work.mkdir()
        (self.work / "program").symlink_to(self.tools / "program")
        self.end = time.monotonic() + DEADLINE

    def environment(self):
        """The variables of a user on a host; hosts share all folders but /run."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EARLYBIRD_", "SLURM_"))}
        path = ":".join([*map(str, self.path), os.environ["PATH"]])
        return {**kept, "PATH": path, "HOME": str(self.work), "TMPDIR": "/run"}

    def start(self, script, host=None):
        """Starts a script of bash's on a host, the first one by default, in the folder of the case."""
        host = host or next(iter(self.hosts.values()))
        started = subprocess.Popen(
            host.inside(["bash", "-euo", "pipefail", "-c", script], directory=self.work),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        started.script = script
        self.running.append(started)
        return started

    def finish(self, started, fails=False):
        """What a script has printed, once it has ended; it must succeed, or with `fails` fail."""
        try:
            output, _ = started.communicate(timeout=max(1, self.end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill(started)
            output = started.communicate()[0]
            raise Failed(f"hangs:\n{shown(started.script, output)}") from None
        self.running.remove(started)
        if (started.returncode != 0) != fails:
            raise Failed(f"exit status {started.returncode}:\n{shown(started.script, output)}")
        return output

    def sh(self, script, *says, host=None, fails=False):
        """Runs a script to its end, and checks that its output has these texts."""
        output = self.finish(self.start(script, host), fails)
        self.check(script, output, *says)
        return output

    def batch(self, script, *says, options="", fails=False):
        """Runs a batch script of Slurm's to its end, and checks its output."""
        file = self.work / "job.sh"
        file.write_text(script if script.startswith("#!") else f"#!/bin/bash\nset -euo pipefail\n{script}\n")
        submit = f"sbatch --wait --output=job.out {options} job.sh"
        try:
            self.sh(submit, fails=fails)
        except Failed as problem:
            raise Failed(f"{problem}\n{shown(file.read_text(), self.output('job.out'))}") from None
        output = self.output("job.out")
        self.check(script, output, *says)
        return output

    def output(self, name):
        file = self.work / name
        return file.read_text(errors="replace") if file.exists() else ""

    def check(self, script, output, *says):
        for text in says:
            if text not in output:
                raise Failed(f"does not say {text!r}:\n{shown(script, output)}")

    def kill(self, started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()

    def tidy(self):
        """Ends what the case has left."""
        while self.running:
            self.kill(self.running.pop())
        if self.cluster:
            self.cluster.clear()


def sums(output, ranks):
    """Checks that all ranks of a world of ./program have ended well."""
    seen = sorted(int(rank) for rank in re.findall(rf"rank (\d+) of {ranks}: saw ", output))
    if seen != list(range(ranks)):
        raise Failed(f"not all of {ranks} ranks of ./program have ended well:\n{output}")


def shown(script, output):
    told = [f"  $ {line}" for line in script.strip().splitlines()]
    return "\n".join([*told, *(f"  {line}" for line in output.splitlines()[-40:])])


class Report:
    """Runs cases, and counts those that fail. A case that lacks something is SKIPPED, loudly."""

    def __init__(self, asked):
        self.asked = asked
        self.failed, self.skipped, self.passed = [], [], 0

    def wants(self, name):
        return not self.asked or any(word in name for word in self.asked)

    def wants_any(self, part):
        return any(self.wants(name) for name, *_ in CASES[part])

    def skip(self, need, why):
        """Says so; a failure where TEST_NO_SKIPS demands the need."""
        print(f"SKIPPED: {need}: {why}", flush=True)
        self.skipped.append(need)
        demanded = {name.strip() for name in os.environ.get("TEST_NO_SKIPS", "").split(",")}
        if demanded & {"all", need}:
            print(f"TEST_NO_SKIPS demands {need}", flush=True)
            self.failed.append(f"skipped: {need}")

    def run(self, part, rig, lacks):
        """Runs the cases of a part. The function that `lacks` has for a need says why it is missing."""
        for name, function, needs in CASES[part]:
            if not self.wants(name):
                continue
            found = [(need, lacks[need]()) for need in needs]
            missing = [(need, why) for need, why in found if why]
            if missing:
                need, why = missing[0]
                # The library for PMIx is one of Slurm's packages.
                self.skip("slurm" if need == "pmix" else need, f"case {name}: {why}")
                continue
            began = time.monotonic()
            try:
                rig.begin(name)
                try:
                    function(rig)
                finally:
                    rig.tidy()
            except Failed as problem:
                self.failed.append(name)
                print(f"case {name} FAILED ({time.monotonic() - began:.0f} s): {problem}", flush=True)
            else:
                self.passed += 1
                print(f"case {name} ok ({time.monotonic() - began:.0f} s)", flush=True)

    def end(self):
        """The exit status."""
        print(f"{self.passed} cases passed, {len(self.failed)} failed, {len(self.skipped)} skipped")
        for name in self.failed:
            print(f"FAILED: {shlex.quote(name)}", file=sys.stderr)
        return 1 if self.failed else 0
