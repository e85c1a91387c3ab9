"""A worker that says what it was given. Leaves one JSON file under $PROBE_OUT.

Arguments that begin with "do:" say what else to do; the others are only recorded.
  do:wait        stay until a signal comes, and record it
  do:stubborn    record SIGTERM and SIGINT and stay
  do:fail=R:C    rank R ends with code C once all ranks are there, the others wait for a signal
  do:fail0=R:C   the same, but only before the first restart
  do:kill=R:S    rank R sends itself signal S
  do:report      a rank that is going to fail writes its error file first
"""
import json
import os
import signal
import sys
import time

NAMES = """
RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE
ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE
TORCHELASTIC_SIGNALS_TO_HANDLE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS
CUDA_VISIBLE_DEVICES TORCHELASTIC_TIMER_FILE NODE_RANK
""".split()

OUT = os.environ["PROBE_OUT"]
RANK = os.environ["RANK"]
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
PATH = os.path.join(OUT, f"{ATTEMPT}_{RANK}.json")

record = {
    "environment": {name: os.environ[name] for name in NAMES if name in os.environ},
    "added": sorted(set(os.environ) - set(os.environ["PROBE_KNOWN"].split(",")) - set(NAMES)),
    "argv": sys.argv,
    "command": sys.orig_argv,
    "cwd": os.getcwd(),
    "signals": [],
}


def save():
    with open(PATH + ".part", "w") as file:
        json.dump(record, file)
    os.replace(PATH + ".part", PATH)  # whoever looks sees all of it or nothing


def say_ready():
    with open(os.path.join(OUT, f"{ATTEMPT}_{RANK}.ready"), "w"):
        pass


def wait_for_all():
    """Until all ranks have printed what they print and would record a signal."""
    wanted = [f"{ATTEMPT}_{rank}.ready" for rank in range(int(os.environ["WORLD_SIZE"]))]
    deadline = time.monotonic() + 60
    while not all(os.path.exists(os.path.join(OUT, name)) for name in wanted):
        if time.monotonic() > deadline:
            sys.exit("other ranks did not come")
        time.sleep(0.01)


def wait_for_signal(leave):
    def handle(number, frame):
        record["signals"].append(signal.Signals(number).name)
        save()
        if leave:
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, handle)
    save()
    say_ready()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(1)
    sys.exit("no signal came")


def fail(action, report):
    rank, how = action.split("=")[1].split(":")
    if rank != RANK:
        wait_for_signal(leave=True)
    say_ready()
    wait_for_all()
    if report:
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "ValueError: wrong", "extraInfo":
                                   {"py_callstack": "Traceback", "timestamp": "1"}}}, file)
    if action.startswith("do:kill"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    sys.exit(int(how))


def main():
    actions = [word for word in sys.argv[1:] if word.startswith("do:")]
    save()
    # One write each: print() would make two, and a signal may come between them.
    os.write(1, f"probe: out apple of rank {RANK}\n".encode())
    os.write(2, f"probe: err pear, of rank {RANK}\n".encode())
    for action in actions:
        if action.startswith(("do:fail=", "do:kill=")):
            fail(action, "do:report" in actions)
        if action.startswith("do:fail0=") and ATTEMPT == "0":
            fail(action, "do:report" in actions)
        if action in ("do:wait", "do:stubborn"):
            wait_for_signal(leave=action == "do:wait")


main()
