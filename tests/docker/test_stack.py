"""Services of a few words under a real supervisord: ``scripts.stack`` without Airflow and Spark."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from scripts.stack import __main__, supervision
from scripts.stack.compose import Service, read_services, settings
from scripts.stack.stack import CHOICES as CHOICES_FILE, Stack, choices_of
from scripts.stack.supervision import StackError
from tests.docker.description import CHOICES, ROOT
from tests.standalone_cluster import free_port

LASTS = "trap 'echo last words; exit 0' TERM; while :; do sleep 0.1; done"
"""Runs until it is told to end, and takes its leave."""

_LIMIT_SECONDS = 60
_SLEEPER = "import setproctitle, time; setproctitle.setproctitle('a title ' * 9); print(flush=True); time.sleep(600)"
_LEAVES_A_SLEEPER = f"""
import subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", {_SLEEPER!r}], start_new_session=True, stdout=subprocess.PIPE)
left.stdout.readline()
print(left.pid, flush=True)
time.sleep(600)
"""


def service(name: str, script: str, **more: object) -> Service:
    told = {"check": ("true",), "needs": {}, "restarts": False, "stop_signal": "TERM", "port": None, **more}
    environment = {"PATH": os.environ["PATH"]}
    return Service(name=name, command=("sh", "-c", script), environment=environment, **told)  # type: ignore[arg-type]


def job(name: str, script: str, **more: object) -> Service:
    return service(name, script, check=(), **more)


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen"


@pytest.fixture(autouse=True)
def _no_time_is_lost(monkeypatch):
    """A process counts as running from its first moment, and the next look comes soon."""
    monkeypatch.setattr(supervision, "_SETTLED_SECONDS", 0)
    monkeypatch.setattr("scripts.stack.stack.POLL_SECONDS", 0.05)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket below it."""
    with tempfile.TemporaryDirectory(prefix="stack-") as folder:
        yield Path(folder)


@pytest.fixture
def folder(place: Path) -> Path:
    return place / "s"


@pytest.fixture
def stacks(folder: Path) -> Iterator[Callable[..., Stack]]:
    made: list[Stack] = []

    def make(*services: Service, at: Path = folder, limit: float = _LIMIT_SECONDS, **choices: str) -> Stack:
        made.append(Stack(at, list(services), choices, lambda there: None, limit))
        return made[-1]

    yield make
    for stack in made:
        while left := list(stack.supervisor.left()):
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left)


def pid_of(stack: Stack, name: str) -> int:
    return stack.supervisor.process(name).pid


class TestUp:
    def test_services_start_when_what_they_wait_for_is_ready(self, stacks, folder):
        first = job("first", "echo first >>order")
        second = service(
            "second",
            f"echo second >>order; {LASTS}",
            needs={"first": "service_completed_successfully"},
            check=("grep", "second", str(folder / "order")),
        )
        third = job("third", "echo third >>order", needs={"second": "service_healthy"})

        assert stacks(first, second, third).up()

        assert (folder / "order").read_text().split() == ["first", "second", "third"]

    def test_a_service_is_waited_for_until_it_is_healthy(self, stacks, folder):
        begins = service("begins", f"echo >begun; {LASTS}", check=("test", "-e", str(folder / "begun")))
        goes_on = job("goes-on", "test -e begun", needs={"begins": "service_healthy"})

        assert stacks(begins, goes_on).up()

    def test_a_job_that_fails_ends_it_and_is_named_with_its_last_words(self, stacks, folder, capsys):
        stack = stacks(
            job("fails", "echo the disk is full; exit 3"),
            job("never", "touch started", needs={"fails": "service_completed_successfully"}),
        )

        assert not stack.up()

        said = capsys.readouterr().out
        assert "fails is not healthy: EXITED" in said
        assert "    the disk is full\n" in said
        assert not (folder / "started").exists()

    def test_a_service_that_stays_ill_is_named_after_the_limit_with_what_its_check_says(self, stacks, capsys):
        stack = stacks(service("ill", LASTS, check=("sh", "-c", "echo fever; exit 1")), limit=0)

        assert not stack.up()

        assert "ill is not healthy: RUNNING, unhealthy: fever" in capsys.readouterr().out

    def test_a_service_that_dies_and_is_started_again_is_waited_for(self, stacks, folder):
        shaky = f"test -e once || {{ touch once; exit 1; }}; touch twice; {LASTS}"

        assert stacks(service("shaky", shaky, check=("test", "-e", str(folder / "twice")), restarts=True)).up()

    def test_a_second_time_goes_on_where_the_first_stopped(self, stacks, folder):
        slow = service("slow", LASTS, check=("test", "-e", str(folder / "ready")))
        later = service("later", LASTS, needs={"slow": "service_healthy"})
        assert not stacks(slow, later, limit=0).up()
        again = stacks(slow, later)
        before = pid_of(again, "slow")
        (folder / "ready").touch()

        assert again.up()

        assert pid_of(again, "slow") == before
        assert pid_of(again, "later")

    def test_a_check_that_does_not_answer_is_no_health(self, stacks, monkeypatch, capsys):
        monkeypatch.setattr("scripts.stack.stack._CHECK_SECONDS", 0.1)

        assert not stacks(service("silent", LASTS, check=("sleep", "60")), limit=0).up()

        assert "unhealthy: no reply within 0.1 s" in capsys.readouterr().out

    def test_a_service_has_its_own_environment_and_the_folder_as_its_own(self, stacks, folder, monkeypatch):
        monkeypatch.setenv("SECRET_OF_THE_SHELL", "x")

        assert stacks(job("tells", "env >told; pwd >>told")).up()

        told = (folder / "told").read_text()
        assert "SECRET_OF_THE_SHELL" not in told
        assert told.endswith(f"{folder}\n")

    @pytest.mark.parametrize("umask", [0o077, 0], ids=["strict", "none"])
    def test_others_may_pass_through_the_folder_and_see_no_command_of_it(self, stacks, folder, umask):
        before = os.umask(umask)
        try:
            assert stacks(job("ends", "true")).up()
        finally:
            os.umask(before)

        assert stat.S_IMODE(folder.stat().st_mode) == 0o711
        assert stat.S_IMODE((folder / "services.json").stat().st_mode) == 0o600

    def test_a_folder_keeps_the_choices_with_which_it_was_made(self, stacks, folder):
        assert choices_of(folder) == {}

        assert stacks(job("ends", "true"), CORES="7").up()

        assert choices_of(folder) == {"CORES": "7"}


@pytest.mark.soak
class TestAgain:
    def test_a_job_that_failed_is_tried_again(self, stacks, folder):
        stack = stacks(job("tries", "test -e there || { touch there; exit 1; }"))
        assert not stack.up()

        assert stack.up()

    def test_a_service_that_is_not_to_restart_stays_dead(self, stacks, folder):
        """The store of ``make up`` would come back empty."""
        stack = stacks(service("forgets", LASTS))
        assert stack.up()
        os.kill(stack.supervisor.process("forgets").pid, signal.SIGKILL)
        eventually("its end", lambda: stack.supervisor.process("forgets").state == "EXITED")

        assert not stack.up()

    def test_a_start_that_was_interrupted_while_it_prepared_begins_anew(self, folder):
        def interrupted(there: Path) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Stack(folder, [], {}, interrupted).up()
        stack = Stack(folder, [job("ends", "true")], {}, lambda there: None)
        try:
            assert stack.up()
        finally:
            stack.down()


class TestRefusals:
    """Each comes before anything is made."""

    @pytest.fixture
    def taken(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield str(server.getsockname()[1])

    def test_a_port_that_is_taken(self, stacks, folder, taken):
        with pytest.raises(StackError, match=rf"expected port {taken} to be free, .*: A_PORT=… make up"):
            stacks(job("ends", "true"), A_PORT=taken).up()
        assert not folder.exists()

    @pytest.mark.parametrize("port", ["", "eighty", "0", "65536"])
    def test_a_port_that_is_none(self, stacks, folder, port):
        with pytest.raises(StackError, match=f"expected a port number, found '{port}'"):
            stacks(job("ends", "true"), A_PORT=port).up()
        assert not folder.exists()

    def test_a_port_that_is_chosen_twice(self, stacks, folder):
        with pytest.raises(StackError, match="found 1234 for A_PORT too; choose another: B_PORT="):
            stacks(job("ends", "true"), A_PORT="1234", B_PORT="1234").up()
        assert not folder.exists()

    def test_a_folder_that_is_there(self, stacks, folder):
        folder.mkdir()

        with pytest.raises(StackError, match=r"found the files of an earlier start; run make down first"):
            stacks(job("ends", "true")).up()
        assert list(folder.iterdir()) == []

    def test_a_folder_of_an_earlier_start_whose_services_were_begun(self, stacks, folder):
        stack = stacks(job("ends", "true"))
        assert stack.up()
        stack.supervisor.end()

        with pytest.raises(StackError, match=r"found the files of an earlier start; run make down first"):
            stack.up()

    def test_a_path_that_is_too_long_for_a_socket(self, stacks, place):
        folder = _of_length(place, 80)

        with pytest.raises(StackError, match="expected a path of at most 95 bytes for a socket"):
            stacks(job("ends", "true"), at=folder).up()
        assert not folder.exists()

    @pytest.mark.parametrize("character", list("\"'`$\\;\n"))
    def test_a_path_that_a_shell_would_take_apart(self, stacks, place, character):
        with pytest.raises(StackError, match="expected a folder with none of"):
            stacks(job("ends", "true"), at=place / f"a{character}b").up()


@pytest.mark.soak
class TestPaths:
    def test_the_longest_that_is_taken_works(self, stacks, place):
        assert stacks(job("ends", "true"), at=_of_length(place, 79)).up()

    def test_spaces_and_signs_of_percent_work(self, stacks, place):
        folder = place / "50 %(x)s of it"
        stack = stacks(service("lasts", LASTS), job("fails", "echo why; exit 1"), at=folder)

        assert not stack.up()

        deaths = folder / "deaths.txt"
        eventually("an entry", lambda: deaths.exists() and "    why\n" in deaths.read_text())
        stack.down()
        assert not folder.exists()


@pytest.mark.soak
class TestDeaths:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended well"])
    def test_a_service_that_ends_by_itself_is_named_with_the_end_of_its_log(self, stacks, folder, number, capsys):
        stack = stacks(service("dies", f"echo first words; {LASTS}"))
        assert stack.up()
        pid = pid_of(stack, "dies")
        eventually("the first words", lambda: "first words" in stack.supervisor.log("dies").read_text())

        os.kill(pid, number)

        deaths = folder / "deaths.txt"
        eventually("an entry", lambda: deaths.exists() and "words" in deaths.read_text())
        assert (
            f"dies exited unexpectedly as process {pid}; last lines of its log:\n    first words\n"
            in deaths.read_text()
        )
        assert not stack.status()
        assert f"dies exited unexpectedly as process {pid}" in capsys.readouterr().out

    def test_a_job_that_is_done_and_a_service_that_is_stopped_are_no_deaths(self, stacks, folder):
        stack = stacks(job("done", "true"), service("stopped", LASTS), service("dies", LASTS))
        assert stack.up()
        stack.supervisor.stop("stopped")
        os.kill(pid_of(stack, "dies"), signal.SIGKILL)

        eventually("an entry", (folder / "deaths.txt").exists)
        eventually("its name", lambda: "dies" in (folder / "deaths.txt").read_text())

        assert "stopped" not in (folder / "deaths.txt").read_text()
        assert "done" not in (folder / "deaths.txt").read_text()

    @pytest.mark.parametrize("restarts", [True, False], ids=["restarts", "stays"])
    def test_the_restart_policy_decides_whether_it_comes_back(self, stacks, restarts):
        stack = stacks(service("dies", LASTS, restarts=restarts))
        assert stack.up()
        before = pid_of(stack, "dies")

        os.kill(before, signal.SIGKILL)

        if restarts:
            eventually("a return", lambda: pid_of(stack, "dies") not in (0, before))
        else:
            eventually("its end", lambda: stack.supervisor.process("dies").state == "EXITED")


@pytest.mark.soak
class TestStatus:
    def test_all_are_shown_and_well(self, stacks, capsys):
        stack = stacks(job("ends", "true"), service("lasts", LASTS))
        assert stack.up()
        capsys.readouterr()

        assert stack.status()

        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [["ends", "EXITED", "done"], ["lasts", "RUNNING", str(pid_of(stack, "lasts")), "healthy"]]

    def test_one_that_has_just_started_is_not_well_yet(self, stacks, monkeypatch, capsys):
        monkeypatch.setattr(supervision, "_SETTLED_SECONDS", 600)
        stack = stacks(service("starts", LASTS), limit=0)
        assert not stack.up()
        capsys.readouterr()

        assert not stack.status()

        assert capsys.readouterr().out.split() == ["starts", "STARTING", str(pid_of(stack, "starts")), "starting"]

    def test_one_that_ends_at_once_again_and_again_is_not_well(self, stacks, monkeypatch, capsys):
        monkeypatch.setattr(supervision, "_SETTLED_SECONDS", 600)
        stack = stacks(service("falls", "exit 1", restarts=True), limit=0)
        assert not stack.up()
        eventually("a pause", lambda: stack.supervisor.process("falls").state == "BACKOFF")

        assert not stack.status()

        assert "Exited too quickly" in capsys.readouterr().out

    def test_a_folder_that_is_not_there_is_told(self, stacks, capsys):
        assert not stacks().status()

        assert "make up starts them" in capsys.readouterr().out

    def test_what_a_killed_supervisord_leaves_is_told(self, stacks, folder, capsys):
        stack = stacks(service("lasts", LASTS))
        assert stack.up()
        _kill_supervisord(stack, folder)

        assert not stack.status()

        assert "has ended" in capsys.readouterr().out
        with pytest.raises(StackError, match=r"expected a reply of supervisord of"):
            stack.supervisor.process("lasts")


class TestDown:
    def test_services_end_in_the_other_order_and_nothing_is_left(self, stacks, place, folder):
        script = "trap 'echo {0} >>{1}/ends; exit' TERM; touch {0}; while :; do sleep 0.1; done"
        check = {name: ("test", "-e", str(folder / name)) for name in ("one", "two")}
        one = service("one", script.format("one", place), check=check["one"])
        two = service("two", script.format("two", place), check=check["two"], needs={"one": "service_healthy"})
        stack = stacks(one, two)
        assert stack.up()

        stack.down()

        assert (place / "ends").read_text().split() == ["two", "one"]
        assert not folder.exists()
        assert list(stack.supervisor.left()) == []

    @pytest.mark.parametrize("killed", [False, True], ids=["supervised", "without supervisord"])
    def test_what_left_its_group_and_took_another_title_ends_too(self, stacks, folder, killed):
        """As Airflow's tasks do."""
        (program := folder.parent / "leaves.py").write_text(_LEAVES_A_SLEEPER)
        stack = stacks(service("leaves", f"exec {sys.executable} {program}"))
        assert stack.up()
        log = stack.supervisor.log("leaves")
        eventually("the sleeper", lambda: log.read_text().endswith("\n"))
        sleeper = psutil.Process(int(log.read_text()))
        if killed:
            _kill_supervisord(stack, folder)

        stack.down()

        assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE
        assert list(stack.supervisor.left()) == []

    def test_what_a_killed_service_had_started_ends_before_its_next_process_begins(self, stacks, folder):
        """As it does when a container ends; what other services have started stays."""
        (program := folder.parent / "leaves.py").write_text(_LEAVES_A_SLEEPER)
        command = f"exec {sys.executable} {program}"
        stack = stacks(service("leaves", command, restarts=True), service("lasts", command))
        assert stack.up()
        logs = {name: stack.supervisor.log(name) for name in ("leaves", "lasts")}
        eventually("both sleepers", lambda: all(log.read_text().endswith("\n") for log in logs.values()))
        pids = {name: int(log.read_text()) for name, log in logs.items()}
        killed = stack.supervisor.process("leaves").pid

        os.kill(killed, signal.SIGKILL)
        eventually("another sleeper", lambda: len(logs["leaves"].read_text().splitlines()) == 2)

        assert not psutil.pid_exists(pids["leaves"]) or psutil.Process(pids["leaves"]).status() == psutil.STATUS_ZOMBIE
        assert psutil.Process(pids["lasts"]).status() != psutil.STATUS_ZOMBIE

    def test_a_folder_of_something_else_stays(self, stacks, folder):
        folder.mkdir()
        (folder / "thesis.txt").touch()
        (folder / "services.json").touch()

        with pytest.raises(StackError, match="expected a folder that up created"):
            stacks(service("lasts", LASTS)).down()

        assert (folder / "thesis.txt").exists()

    def test_what_an_interrupted_start_has_left_goes(self, stacks, folder):
        def interrupted(there: Path) -> None:
            (there / "half").touch()
            raise KeyboardInterrupt

        stack = Stack(folder, [], {}, interrupted)
        with pytest.raises(KeyboardInterrupt):
            stack.up()

        stack.down()

        assert not folder.exists()

    def test_doing_it_again_changes_nothing(self, stacks, folder):
        stacks(service("lasts", LASTS)).down()

        assert not folder.exists()


@pytest.mark.soak
class TestLogs:
    def test_the_last_lines_are_shown(self, stacks, capsys):
        stack = stacks(job("tells", "seq 1 30"), job("other", "echo other"))
        assert stack.up()
        capsys.readouterr()

        stack.logs("tells", 2)

        assert capsys.readouterr().out.split("\n", 1)[1] == "    29\n    30\n\n"

    def test_a_service_that_is_none_is_refused_with_those_that_are(self, stacks):
        with pytest.raises(StackError, match="expected one of tells, other, found tell"):
            stacks(job("tells", "true"), job("other", "true")).logs("tell", 2)


class TestCommands:
    @staticmethod
    def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "scripts.stack", *arguments]
        environ = {**os.environ, **environment}
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)

    def test_an_error_is_one_line_and_fails(self, folder):
        done = self._run("up", "--folder", str(folder), AIRFLOW_PORT="eighty")

        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "up: expected a port number, found 'eighty'; choose another: AIRFLOW_PORT=… make up\n"
        assert not folder.exists()

    def test_the_status_of_nothing_fails(self, folder):
        done = self._run("status", "--folder", str(folder))

        assert (done.returncode, done.stdout) == (1, f"No processes in {folder}; make up starts them.\n")

    def test_each_command_reads_the_options_after_it(self, folder, monkeypatch):
        folder.mkdir()
        seen: list[tuple[object, ...]] = []
        monkeypatch.setattr(Stack, "down", lambda stack: seen.append((stack.folder,)))
        monkeypatch.setattr(Stack, "logs", lambda stack, *told: seen.append((stack.folder, *told)))

        for command in (["down"], ["logs", "--service", "store", "--lines", "3"]):
            monkeypatch.setattr(sys, "argv", ["stack", *command, "--folder", str(folder)])
            assert __main__.main() == 0

        assert seen == [(folder.resolve(),), (folder.resolve(), "store", 3)]

    def test_a_command_of_airflow_gets_its_own_options_and_gives_its_exit_status(self, folder, monkeypatch):
        bin_folder = folder / "bin"
        bin_folder.mkdir(parents=True)
        (airflow := bin_folder / "airflow").write_text(f'#!/bin/sh\necho "$@" >{folder}/told\nexit 3\n')
        airflow.chmod(0o755)
        monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
        monkeypatch.setattr(__main__, "read_services", lambda *told: [service("scheduler", "true")])
        asked = ["statecheck", "logs", "--folder", "x", "--lines", "3"]
        monkeypatch.setattr(sys, "argv", ["stack", "cli", "--folder", str(folder), *asked])

        assert __main__.main() == 3

        assert (folder / "told").read_text().split() == asked

    def test_the_status_asks_where_the_folder_was_started(self, folder, monkeypatch):
        """Also from a shell that does not repeat the choices."""
        folder.mkdir()
        (folder / CHOICES_FILE).write_text('{"AIRFLOW_PORT": "9"}')
        seen: list[dict[str, str]] = []
        monkeypatch.setattr(__main__, "read_services", lambda there, choices: seen.append(choices))
        monkeypatch.setattr(Stack, "status", lambda stack: False)
        monkeypatch.setattr(sys, "argv", ["stack", "status", "--folder", str(folder)])

        assert __main__.main() == 1

        assert seen == [{**settings(), "AIRFLOW_PORT": "9"}]

    def test_an_interruption_is_told_and_fails(self, folder, monkeypatch, capsys):
        def interrupted(stack: Stack) -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(Stack, "status", interrupted)
        monkeypatch.setattr(sys, "argv", ["stack", "status", "--folder", str(folder)])

        assert __main__.main() == 130
        assert "make up waits for the others, make down stops all" in capsys.readouterr().out

    def test_a_folder_is_given_what_containers_have(self, folder):
        folder.mkdir()

        __main__.prepare(folder)

        assert (folder / "docker" / "healthy.py").is_file()
        assert (folder / "scripts" / "stack" / "postgres.py").is_file()
        assert list((folder / "dags").glob("*.py"))
        assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700


def test_the_database_and_the_store_of_the_compose_file_come_up(place):
    place.chmod(0o711)  # root runs PostgreSQL as another user
    folder, ports = place / "real", {"POSTGRES_PORT": str(free_port()), "STORE_PORT": str(free_port())}
    services = {s.name: s for s in read_services(folder, CHOICES | ports)}
    stack = Stack(folder, [services["postgres"], services["store"]], ports, __main__.prepare)

    try:
        assert stack.up()
        password = (folder / "secrets" / "postgres_password").read_text()
        url = f"postgresql+psycopg2://airflow:{password}@127.0.0.1:{ports['POSTGRES_PORT']}/airflow"
        with create_engine(url, poolclass=NullPool).connect() as connection:
            assert connection.execute(text("SELECT current_user")).scalar_one() == "airflow"
    finally:
        stack.down()

    assert not folder.exists()


def _of_length(place: Path, length: int) -> Path:
    return place / ("x" * (length - len(str(place)) - 1))


def _kill_supervisord(stack: Stack, folder: Path) -> None:
    supervisord = psutil.Process(int((folder / "supervisord.pid").read_text()))
    supervisord.kill()
    eventually("the end of supervisord", lambda: not stack.supervisor.is_running())
