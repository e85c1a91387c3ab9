"""A worker that can be carried into another membership, without torch: its collectives are files.

Usage: recovering_worker.py FOLDER STEPS [step_seconds]

It does what a Trainer does: meets the others, takes the newest state that one of them has, makes
steps that need all of them, and commits each for itself. FOLDER/log gets a line for everything,
with the worker's slot, which stays the same when ranks are numbered anew because some are left out.
No step after the number in FOLDER/hold is begun, and while there is FOLDER/deadly no worker joins,
or none up to the epoch in it.
RECOVERING_WORKER=NAME:SLOT:STEP does NAME at that step in that slot: exit, segv, reject, slow_join,
and once in a job loop (for ever), evaluate or save (for 5 s), and slow_data from that step on; or, of
spares: slow_spare, bad_spare.
"""

import json
import os
import pathlib
import queue
import signal
import socket
import struct
import sys
import threading
import time

folder = pathlib.Path(sys.argv[1])
steps = int(sys.argv[2])
step_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
trick, trick_slot, trick_step = (os.environ.get("RECOVERING_WORKER", "::") + "::").split(":")[:3]
is_spare = os.environ.get("LOCKSTEP_SPARE") == "1"
slot = -1 if is_spare else int(os.environ["LOCKSTEP_SLOT"])
joins = os.environ.get("LOCKSTEP_JOINS") == "1"


def log(*words):
    with open(folder / "log", "a") as file:  # one write of one line: they do not mix
        file.write(" ".join(str(word) for word in (slot, os.getpid(), *words)) + "\n")


class Revoked(Exception):
    pass


class Meter:
    """How long the program has been at work by itself: what a ProgressMeter tells."""

    def __init__(self):
        self.phase, self.waits_for, self.since = "", "", time.monotonic()
        self.longest, self.visits = {}, {}
        self.work = {"steps": 0, "data_us": 0, "compute_us": 0, "waiting_us": 0}

    def sign_of_progress(self):
        now = time.monotonic()
        if not self.waits_for:
            self.longest[self.phase] = max(self.longest.get(self.phase, 0), now - self.since)
        self.since = now

    def report(self, phase):
        self.sign_of_progress()
        self.visits[self.phase] = self.visits.get(self.phase, 0) + 1
        self.phase = phase

    def wait(self, what):
        self.sign_of_progress()
        self.waits_for = what

    def add_step(self, **seconds):
        self.work["steps"] += 1
        for name, value in seconds.items():
            self.work[f"{name}_us"] += int(value * 1e6)

    def fields(self):
        alone = 0 if self.waits_for or not self.phase else time.monotonic() - self.since
        return {"phase": self.phase, "age_ms": 0, "waits_for": self.waits_for,
                "alone_ms": int(alone * 1000),
                "longest_alone_ms": int(self.longest.get(self.phase, 0) * 1000),
                "visits": self.visits.get(self.phase, 0), **self.work}


class Agent:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["LOCKSTEP_AGENT"])
        self.lock = threading.Lock()
        self.worlds = queue.Queue()
        self.places = queue.Queue()
        self.revoked = 0
        self.step = 0
        self.meter = Meter()
        self.send({"kind": "hello", "oldest_protocol": 1, "newest_protocol": 2, "pid": os.getpid(),
                   "rank": int(os.environ.get("RANK", "0")), "slot": max(slot, 0),
                   "epoch": int(os.environ.get("LOCKSTEP_EPOCH", "0")), "program": "fake",
                   "spare": is_spare})
        self.welcome = self.receive()
        for work in (self.listen, self.beat):
            threading.Thread(target=work, daemon=True).start()

    def send(self, message):
        text = json.dumps(message).encode()
        with self.lock:
            self.socket.sendall(struct.pack("<I", len(text)) + text)

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                os._exit(9)  # the agent is gone
            data += more
        return data

    def receive(self):
        return json.loads(self.read(struct.unpack("<I", self.read(4))[0]))

    @staticmethod
    def first_time(what):
        try:
            os.close(os.open(folder / what, os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            return False

    def listen(self):
        while True:
            message = self.receive()
            if message["kind"] == "revoke_world":
                self.revoked = message["epoch"]
                log("revoked", message["epoch"], *message["lost_ranks"])
            elif message["kind"] == "new_world":
                self.worlds.put(message)
            elif message["kind"] == "take_place":
                self.places.put(message["variables"])

    def beat(self):
        while True:
            self.send({"kind": "heartbeat", "step": self.step, **self.meter.fields()})
            time.sleep(0.2)


def wait_for_all(agent, world, name):
    """A collective: all ranks of the world have come here."""
    agent.meter.wait(name)
    place = folder / f"epoch_{world['epoch']}" / name
    rank = world["rank"]
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{rank}.new").write_text(f"{agent.step if agent.has_state else -1}")
    (place / f"{rank}.new").rename(place / str(rank))
    while True:
        if agent.revoked > world["epoch"]:
            raise Revoked()
        files = [place / str(each) for each in range(world["world_size"])]
        if all(file.exists() for file in files):
            agent.meter.wait("")
            return [int(file.read_text()) for file in files]
        time.sleep(0.002)


def held_at():
    try:
        return int((folder / "hold").read_text())
    except FileNotFoundError:
        return steps


def last_deadly_epoch():
    try:
        return int((folder / "deadly").read_text() or sys.maxsize)
    except FileNotFoundError:
        return 0


def wait_while_held(agent, world):
    agent.meter.wait("the test")
    while agent.step >= held_at():
        if agent.revoked > world["epoch"]:
            raise Revoked()
        time.sleep(0.002)
    agent.meter.wait("")


def visit_store(agent, world):
    """The store of this membership is where the message, or the environment, says; unless another
    membership is being formed already."""
    try:
        socket.create_connection((world["master_addr"], world["master_port"]), 10).close()
    except OSError:
        deadline = time.monotonic() + 30
        while agent.revoked <= world["epoch"]:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        raise Revoked()


def stand_still(agent):
    log("stands", "still")
    end = time.monotonic() + (1000 if trick == "loop" else 5)
    agent.meter.report("train" if trick == "loop" else trick)
    agent.meter.wait("disk" if trick == "save" else "")
    while time.monotonic() < end:
        time.sleep(0.01)
    agent.meter.wait("")


def do_trick(agent, world):
    if agent.step != int(trick_step or -1):
        return
    if trick == "segv":
        wait_for_all(agent, world, "brink")  # by then the agent was told that all go on
    if slot != int(trick_slot):
        return
    if trick == "exit" and not joins:
        os._exit(3)
    if trick == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if trick in ("loop", "evaluate", "save") and agent.first_time(trick):
        stand_still(agent)
    if trick == "reject" and world["epoch"] == 1:
        agent.send({"kind": "rejected", "ranks": [1 - world["rank"]], "epoch": world["epoch"],
                    "reason": "its state differs"})


def train(agent, world):
    visit_store(agent, world)
    newest = max(wait_for_all(agent, world, "meet"))
    log("met", world["epoch"], "at", max(newest, 0), "as", world["rank"], "of", world["world_size"],
        "on", world["local_world_size"])
    agent.step, agent.has_state = max(newest, 0), True
    agent.send({"kind": "recovers", "epoch": world["epoch"], "step": agent.step, "able": True})
    while agent.step < steps:
        do_trick(agent, world)
        wait_while_held(agent, world)
        slow = trick == "slow_data" and slot == int(trick_slot) and agent.step >= int(trick_step)
        data = 3 * step_seconds if slow else 0
        time.sleep(data)
        agent.meter.report("train")
        time.sleep(step_seconds)
        began = time.monotonic()
        wait_for_all(agent, world, f"step_{agent.step}")
        # As meant, not as measured: on a busy machine sleeps take as long as they like.
        agent.meter.add_step(data=data, compute=step_seconds, waiting=time.monotonic() - began)
        agent.meter.report("evaluate")  # often, and short
        agent.step += 1
        log("committed", agent.step)
    wait_for_all(agent, world, "end")


def await_place():
    """What a spare does: it connects and waits, and is then what the message says."""
    global slot, joins
    log("loads")
    if trick == "slow_spare":
        time.sleep(1000)
    if trick == "bad_spare":
        sys.exit("a bad spare")
    agent = Agent()
    log("waits")
    os.environ.update(agent.places.get())
    slot, joins = int(os.environ["LOCKSTEP_SLOT"]), os.environ["LOCKSTEP_JOINS"] == "1"
    return agent


def main():
    print("process", os.getpid(), flush=True)
    agent = await_place() if is_spare else None
    log("start", "joins" if joins else "first", os.environ["LOCKSTEP_EPOCH"])
    if joins and int(os.environ["LOCKSTEP_EPOCH"]) <= last_deadly_epoch():
        os.kill(os.getpid(), signal.SIGKILL)
    if trick == "slow_join" and joins and int(os.environ["LOCKSTEP_EPOCH"]) == 2:
        time.sleep(1000)
    agent = agent or Agent()
    agent.has_state = False
    log("replaces" if agent.welcome["replaces"] else "restarts")
    world = {"epoch": int(os.environ["LOCKSTEP_EPOCH"]), "rank": int(os.environ["RANK"]),
             "world_size": int(os.environ["WORLD_SIZE"]),
             "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
             "master_addr": os.environ["MASTER_ADDR"], "master_port": int(os.environ["MASTER_PORT"])}
    while True:
        try:
            train(agent, world)
            break
        except Revoked:
            world = agent.worlds.get(timeout=60)
            while world["epoch"] < agent.revoked:
                world = agent.worlds.get(timeout=60)
    agent.send({"kind": "leaving"})
    log("end")


main()
