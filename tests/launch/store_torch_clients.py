"""Torch's own clients and process groups on our store, and our store beside torch's.

store_torch_clients.py SERVER, where SERVER is the program store_server_main.
"""

import datetime
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

SECONDS_OF_DIFFERENTIAL = 3
SEED = 20251115
PROGRAM = None


class Server:
    """Our store in a process of its own."""

    def __init__(self):
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.port = int(self.process.stdout.readline())

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = []
        for line in iter(self.process.stdout.readline, "end\n"):
            if not line:
                raise RuntimeError("the store has died")
            answer.append(line.split())
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait(10) != 0:
            raise RuntimeError(f"the store ended with {self.process.returncode}")


def run_rank():
    """One rank: for each line that comes, joins a small job, trains and prints what came out."""
    import torch
    import torch.distributed as dist
    for _ in sys.stdin:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
        rank = dist.get_rank()
        total = torch.tensor([float(rank + 1)])
        dist.all_reduce(total)
        torch.manual_seed(rank)  # DDP gives every rank the parameters of rank 0
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            torch.manual_seed(10 * step + rank)
            model(torch.randn(8, 4)).square().sum().backward()
            optimizer.step()
        gathered = [None, None]
        dist.all_gather_object(gathered, rank, group=dist.new_group([0, 1]))
        dist.barrier()
        weights = [p.detach().numpy().tobytes().hex() for p in model.parameters()]
        dist.destroy_process_group()
        print(total.item(), gathered, *weights, flush=True)


class TorchClients(unittest.TestCase):
    def test_calls_of_a_client_give_what_they_give_on_torchs_server(self):
        import torch.distributed as dist
        second = datetime.timedelta(seconds=20)
        theirs = dist.TCPStore("127.0.0.1", 0, None, True, second)
        with Server() as server:
            ours = dist.TCPStore("127.0.0.1", server.port, None, False, second)
            self.assertEqual(self.exercise(ours), self.exercise(theirs))

    def exercise(self, store):
        """The results of every kind of call, exceptions included."""
        import torch.distributed as dist
        results = []

        def note(call, *arguments):
            try:
                results.append(call(*arguments))
            except Exception as error:  # which one is part of the result
                results.append(type(error).__name__)

        short = datetime.timedelta(milliseconds=50)
        note(store.set, "k", "v")
        note(store.get, "k")
        note(store.add, "n", 5)
        note(store.add, "n", -7)
        note(store.compare_set, "k", "v", "w")
        note(store.compare_set, "absent", "x", "y")
        note(store.compare_set, "made", "", "y")
        note(store.check, ["k", "absent"])
        note(store.wait, ["k", "n"])
        note(store.wait, ["absent"], short)
        note(store.append, "k", "+")
        note(store.multi_set, ["a", "b"], ["1", "2"])
        note(store.multi_get, ["b", "a", "k"])
        note(store.num_keys)
        note(store.delete_key, "a")
        note(store.delete_key, "a")
        note(store.queue_push, "q", "e1")
        note(store.queue_push, "q", "e2")
        note(store.queue_len, "q")
        note(store.queue_pop, "q")
        note(store.queue_pop, "q", False)
        note(store.queue_pop, "q", False)
        prefixed = dist.PrefixStore("p", store)
        note(prefixed.set, "k", "inner")
        note(store.get, "p/k")
        results.append(sorted(store.list_keys()))
        note(store.set, "large", "x" * 8_388_608)
        results.append(len(store.get("large")))
        clone = store.clone()
        waiting = threading.Thread(target=note, args=(clone.get, "late"))
        waiting.start()
        note(store.set, "late", "came")
        waiting.join(20)
        return sorted(map(repr, results))

    def test_jobs_of_two_ranks_meet_and_a_late_rank_is_named(self):
        with Server() as server:
            environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=str(server.port), TORCHELASTIC_USE_AGENT_STORE="True",
                               OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
            ranks = [subprocess.Popen([sys.executable, __file__, "rank"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, bufsize=1,
                                      env=dict(environment, RANK=str(rank))) for rank in range(2)]
            try:
                first = self.train(server, ranks)
                server.ask("keyspace 2")
                self.assertEqual(self.train(server, ranks), first, "on a new keyspace")
                for rank in ranks:
                    rank.stdin.close()
                self.assertEqual([rank.wait(60) for rank in ranks], [0, 0])
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
                    rank.stdout.close()

    def train(self, server, ranks):
        """Runs a job whose second rank is late. Returns what the ranks agree on."""
        self.assertEqual(server.ask("status 2"), [["missing", "0", "1"]])
        ranks[0].stdin.write("go\n")
        expected = [["missing", "1"], ["waits", str(ranks[0].pid), "/default_pg/0//cpu//0/1"]]
        deadline = time.monotonic() + 60
        while (status := server.ask("status 2")) != expected:
            self.assertIsNone(ranks[0].poll(), "rank 0 ended")
            self.assertLess(time.monotonic(), deadline, status)
            time.sleep(0.02)
        ranks[1].stdin.write("go\n")
        outputs = [rank.stdout.readline() for rank in ranks]
        self.assertEqual(outputs[0], outputs[1])
        self.assertTrue(outputs[0].startswith("3.0 [0, 1] "), outputs[0])
        return outputs[0]

    def test_random_commands_get_the_same_bytes_as_from_torchs_server(self):
        import torch.distributed as dist
        theirs = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=20))
        with Server() as server:
            pairs = [(connect(theirs.port), connect(server.port)) for _ in range(3)]
            commands = Commands(random.Random(SEED))
            end = time.monotonic() + SECONDS_OF_DIFFERENTIAL
            count = 0
            while count < 200 or time.monotonic() < end:
                count += 1
                client = commands.random.randrange(len(pairs))
                request = commands.next()
                # The nonce that comes back says that all replies before it are there.
                nonce = struct.pack("<I", 0xF00D0000 + count % 0x10000)
                replies = []
                for connection in pairs[client]:
                    connection.sendall(request + b"\x0d" + nonce)
                    replies.append(receive_until(connection, nonce))
                self.assertEqual(replies[0], replies[1], f"command {count}: {request[:80]}")
            for pair in pairs:
                for connection in pair:
                    connection.close()
        print(f"{count} commands answered alike")


def text(value):
    return struct.pack("<Q", len(value)) + value


class Commands:
    """Random requests. What our store does better than torch's on purpose is left out: waits for keys
    that COMPARE_SET touches or that are queues, and a second WAIT before the first has ended."""

    def __init__(self, source):
        self.random = source
        self.makers = [self.set, self.compare_set, self.get, self.add, self.check, self.wait,
                       self.count, self.delete, self.append, self.multi_get, self.multi_set,
                       self.cancel, self.queue_push, self.queue_pop, self.queue_length,
                       self.barrier]

    def next(self):
        return self.random.choice(self.makers)()

    def key(self, kind="k", count=6):
        return f"/{kind}{self.random.randrange(count)}".encode()

    def any_key(self):
        return self.key(self.random.choice("kcnq"))

    def value(self):
        return self.random.randbytes(self.random.choice((0, 1, 5, 40, 3000)))

    def keys(self, kinds):
        return [self.key(self.random.choice(kinds)) for _ in range(self.random.randrange(4))]

    def set(self):
        return b"\x01" + text(self.key(self.random.choice("kc"))) + text(self.value())

    def compare_set(self):
        values = (b"", b"a", b"b")
        return (b"\x02" + text(self.key("c")) + text(self.random.choice(values)) +
                text(self.random.choice(values)))

    def get(self):
        return b"\x03" + text(self.any_key())

    def add(self):
        number = self.random.choice((1, -1, 0, 2**63 - 1, -2**63, self.random.randrange(1000)))
        return b"\x04" + text(self.key("n")) + struct.pack("<q", number)

    def check(self):
        keys = self.keys("kcnq")
        return b"\x05" + struct.pack("<Q", len(keys)) + b"".join(map(text, keys))

    def wait(self):
        keys = self.keys("kn")
        return (self.cancel() + b"\x06" + struct.pack("<Q", len(keys)) +
                b"".join(map(text, keys)))

    def count(self):
        return b"\x07"

    def delete(self):
        return b"\x08" + text(self.any_key())

    def append(self):
        return b"\x09" + text(self.key("c")) + text(self.value())

    def multi_get(self):
        keys = self.keys("kcnq")
        return b"\x0a" + struct.pack("<Q", len(keys)) + b"".join(map(text, keys))

    def multi_set(self):
        keys = self.keys("kc")
        return (b"\x0b" + struct.pack("<Q", len(keys)) +
                b"".join(text(key) + text(self.value()) for key in keys))

    def cancel(self):
        return b"\x0c"

    def queue_push(self):
        return b"\x0e" + text(self.key("q")) + text(self.value())

    def queue_pop(self):
        return b"\x0f" + text(self.key("q"))

    def queue_length(self):
        return b"\x10" + text(self.key("q"))

    def barrier(self):
        return (self.cancel() + b"\x12" + text(self.key("b", 40)) +
                struct.pack("<q", self.random.randrange(4)))


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"\x00" + struct.pack("<I", 0x3C85F7CE))
    return connection


def receive_until(connection, end):
    received = b""
    while not received.endswith(end):
        more = connection.recv(1 << 16)
        if not more:
            raise AssertionError(f"the server closed the connection after {received[-80:]}")
        received += more
    return received


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if PROGRAM == "rank":
        run_rank()
    else:
        test_script.main()
