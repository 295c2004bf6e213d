"""What the library has to say goes to `logging`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap


def messages(program: str, **variables: str) -> str:
    """What a program that is a world of one prints on standard error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EARLYBIRD_")}
    command = [sys.executable, "-c", "import earlybird, logging\n" + textwrap.dedent(program)]
    ended = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_messages_go_to_logging() -> None:
    joins = "earlybird.World().close()"
    format = "%(name)s %(levelname)s %(message)s"
    joined = f"{platform.node()}: joined rank=0"
    assert messages(joins) == ""
    assert joined in messages(joins, EARLYBIRD_LOG="debug")
    configured = f"logging.basicConfig(level=LEVEL, format='{format}')\n{joins}"
    assert f"earlybird DEBUG {joined}" in messages(configured.replace("LEVEL", "logging.DEBUG"))
    assert messages(configured.replace("LEVEL", "logging.INFO")) == ""
    # The environment says what is collected, also where the program wants more.
    assert messages(configured.replace("LEVEL", "logging.DEBUG"), EARLYBIRD_LOG="off") == ""
    refused = "try: earlybird.World()\nexcept earlybird.ConfigError as error: assert 'EARLYBIRD_LOG=loud' in str(error)"
    messages(refused + "\nelse: raise AssertionError('it was taken')", EARLYBIRD_LOG="loud")


def test_a_forked_child_of_a_program_that_logs_ends() -> None:
    text = messages(
        """
        import os
        world = earlybird.World()
        child = os.fork()
        if child == 0:
            raise SystemExit(0)
        assert os.waitpid(child, 0)[1] == 0
        world.close()
        """,
        EARLYBIRD_LOG="debug",
    )
    assert "joined" in text
