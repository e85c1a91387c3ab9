"""Files of runs, read by those they are for: TensorBoard's own loader, and `wandb sync` with a server
that keeps what it is sent.

tools_test.py TRACK_JOB TOOLS      TOOLS: a folder with the packages tensorboard and wandb
"""

import gzip
import http.server
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

TRACK_JOB, TOOLS = (os.path.abspath(path) for path in sys.argv[1:3])
sys.path.insert(0, TOOLS)
LIMIT = 120  # seconds that a tool may take


def write_run(folder, rank, first, last, keep=None, code=""):
    command = [TRACK_JOB, str(folder), str(rank), str(first), str(last)]
    subprocess.run(command + ([] if keep is None else [str(keep)]), check=True, timeout=LIMIT,
                   env={**os.environ, "WANDB_CODE_DIR": str(code)})


def single(number):
    return struct.unpack("f", struct.pack("f", number))[0]


class Server(http.server.ThreadingHTTPServer):
    """As much of W&B's server as `wandb sync` needs. Keeps runs, by their id."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upserts, self.streams, self.files = [], [], {}
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # clients that leave without a word

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def rows(self, run):
        """The history of a run: what was streamed to each line, the last word on it."""
        lines = {}
        for path, body in self.streams:
            history = body.get("files", {}).get("wandb-history.jsonl")
            if f"/{run}/" in path and history:
                for i, line in enumerate(history["content"]):
                    lines[history["offset"] + i] = json.loads(line)
        return [lines[number] for number in sorted(lines)]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        with self.server.lock:
            result = self.result(body)
        data = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = answer

    def result(self, body):
        if "/upload/" in self.path:
            self.server.files[self.path.rsplit("/upload/")[1].split("?")[0]] = body
            return {}
        if "graphql" not in self.path:
            if body:
                self.server.streams.append((self.path, json.loads(body)))
            return {}
        request = json.loads(body)
        query, given = request["query"], request.get("variables") or {}
        if "upsertBucket" in query:
            self.server.upserts.append(given)
            return {"data": {"upsertBucket": {"inserted": True, "bucket": self.bucket(given)}}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.server.address}/upload/{name}"}
                     for name in given["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        user = {"id": "1", "entity": "me", "username": "me", "flags": "{}", "email": "a@b",
                "admin": False, "name": "me", "apiKeys": {"edges": []}, "teams": {"edges": []}}
        if "serverInfo" in query:
            info = {"features": [], "cliVersionInfo": {"max_cli_version": "9.9.9"}}
            return {"data": {"serverInfo": info, "viewer": user}}
        return {"data": {"viewer": user} if "viewer" in query else {}}

    def bucket(self, given):
        lines = len(self.server.rows(given.get("name")))  # where another upload of the run goes on
        project = {"id": "P", "name": given.get("project") or "p",
                   "entity": {"id": "E", "name": given.get("entity") or "me"}}
        return {"id": "B", "name": given.get("name"), "displayName": given.get("displayName"),
                "description": "", "config": given.get("config"), "sweepName": None,
                "project": project, "historyLineCount": lines or None}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class TensorBoard(Folder):
    def load(self):
        from tensorboard.backend.event_processing import event_accumulator
        loader = event_accumulator.EventAccumulator(
            str(self.folder / "tensorboard" / "rank_0"),
            size_guidance={kind: 0 for kind in event_accumulator.DEFAULT_SIZE_GUIDANCE})
        return loader.Reload()

    @staticmethod
    def scalars(loader, tag):
        return [(event.step, event.value) for event in loader.Scalars(tag)]

    def test_scalars_texts_histograms_and_hyperparameters(self):
        write_run(self.folder, 0, 1, 20)
        loader = self.load()
        self.assertEqual(self.scalars(loader, "loss"), [(i, single(1 / i)) for i in range(1, 21)])
        self.assertEqual(self.scalars(loader, "opt/lr"), [(i, 0.25) for i in range(1, 21)])
        text = loader.Tensors("sample/text_summary")[0]
        self.assertEqual((text.step, text.tensor_proto.string_val[0]), (20, b"**once** upon a time"))
        histogram = loader.Histograms("weights")[0].histogram_value
        self.assertEqual((histogram.min, histogram.max, histogram.num), (-1, 1, 4))
        self.assertEqual(list(histogram.bucket), [0, 1, 0, 1, 2])
        plugins = loader.summary_metadata
        from tensorboard.plugins.hparams import plugin_data_pb2
        start = plugin_data_pb2.HParamsPluginData.FromString(
            plugins["_hparams_/session_start_info"].plugin_data.content).session_start_info
        self.assertEqual(start.hparams["lr"].number_value, 0.25)
        self.assertEqual(start.hparams["model.layers"].number_value, 2)
        self.assertEqual(start.hparams["name"].string_value, "tiny")
        self.assertIn("_hparams_/session_end_info", plugins)

    def test_a_run_that_goes_on_has_each_step_once(self):
        write_run(self.folder, 0, 1, 100)
        write_run(self.folder, 0, 81, 120, keep=80)
        loader = self.load()
        self.assertEqual(self.scalars(loader, "loss"), [(i, single(1 / i)) for i in range(1, 121)])

    def test_a_file_cut_at_any_byte_loads_up_to_its_last_record(self):
        write_run(self.folder, 0, 1, 3)
        file, = (self.folder / "tensorboard" / "rank_0").iterdir()
        whole = file.read_bytes()
        ends, offset = [], 0  # of the records
        while offset < len(whole):
            offset += 16 + int.from_bytes(whole[offset:offset + 8], "little")
            ends.append(offset)
        from tensorboard.backend.event_processing import event_file_loader
        for size in range(0, ends[4] + 1, 3):
            file.write_bytes(whole[:size])
            loaded = sum(1 for _ in event_file_loader.RawEventFileLoader(str(file)).Load())
            self.assertEqual(loaded, sum(end <= size for end in ends), f"{size} bytes")


class WeightsAndBiases(Folder):
    def sync(self, server, *folders):
        environment = {**os.environ, "PYTHONPATH": TOOLS, "WANDB_BASE_URL": server.address,
                       "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false",
                       "HOME": str(self.folder), "NO_PROXY": "127.0.0.1"}
        return subprocess.run([sys.executable, "-c", "from wandb.cli.cli import cli; cli()", "sync",
                               *map(str, folders)],
                              cwd="/", env=environment, timeout=LIMIT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def runs(self, name="offline-run-*"):
        return sorted((self.folder / "wandb").glob(name))

    def setUp(self):
        super().setUp()
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def test_a_group_of_ranks_is_uploaded(self):
        source = self.folder / "source"
        for name in ("model/net.py", ".git/hook.py", "build/made.py", "data.bin"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text("print()\n")
        for rank in range(2):
            write_run(self.folder, rank, 1, 20, code=source)
        result = self.sync(self.server, *self.runs())
        self.assertEqual(result.returncode, 0, result.stdout)
        for rank in range(2):
            upserts = [given for given in self.server.upserts if given.get("name") == f"exp-{rank}"]
            self.assertTrue(upserts, self.server.upserts)
            given = {key: value for upsert in upserts for key, value in upsert.items()
                     if value is not None}
            self.assertEqual(given["displayName"], f"rank-{rank}")
            self.assertEqual(given["groupName"], "exp")
            self.assertEqual(given["project"], "tools")
            self.assertEqual(given["tags"], ["one", "two"])
            config = json.loads(given["config"])
            self.assertEqual(config["lr"]["value"], 0.25)
            self.assertEqual(config["model"]["value"], {"layers": 2})
            rows = [row for row in self.server.rows(f"exp-{rank}") if "loss" in row]
            self.assertEqual([(row["_step"], row["step"], row["loss"]) for row in rows],
                             [(i - 1, i, 1 / i) for i in range(1, 21)])
        metrics = json.loads(self.server.upserts[-1]["config"])["_wandb"]["value"].get("m", [])
        self.assertTrue(any(metric.get("1") == "step" for metric in metrics), metrics)
        self.assertEqual(self.server.files.get("notes.txt"), b"notes\n")
        self.assertEqual({name: text for name, text in self.server.files.items() if name.startswith("code/")},
                         {"code/model/net.py": b"print()\n"})
        streams = json.dumps([body for _, body in self.server.streams])
        self.assertIn("a line of the program", streams)
        self.assertIn("gpu.0.gpu", streams)
        exits = [body for _, body in self.server.streams if body.get("complete")]
        self.assertEqual([body.get("exitcode") for body in exits], [0, 0])

    def test_a_run_that_goes_on_is_one_run_with_each_step_once(self):
        write_run(self.folder, 0, 1, 100)
        write_run(self.folder, 0, 81, 120, keep=80)
        self.assertEqual(len(self.runs()), 2)
        result = self.sync(self.server, *self.runs())
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertEqual({given["name"] for given in self.server.upserts if "name" in given
                          and given["name"]}, {"exp-0"})
        rows = [(row["step"], row["loss"]) for row in self.server.rows("exp-0") if "loss" in row]
        self.assertEqual(rows, [(i, 1 / i) for i in range(1, 121)])

    def test_a_run_that_was_killed_is_uploaded_up_to_its_last_record(self):
        write_run(self.folder, 0, 1, 20)
        file, = self.folder.glob("wandb/*/*.wandb")
        file.write_bytes(file.read_bytes()[:2000])
        self.sync(self.server, *self.runs())
        steps = [row["step"] for row in self.server.rows("exp-0")]
        self.assertGreater(len(steps), 3)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))


if __name__ == "__main__":
    test_script.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
