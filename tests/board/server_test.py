"""What `lockstep board` answers, and to whom.

server_test.py LOCKSTEP
"""

import http.client
import json
import os
import pathlib
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import make_runs  # noqa: E402
from board_process import LIMIT, Board  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402


class Server(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="lsboard")
        cls.folder = pathlib.Path(cls.temporary.name) / "runs"
        make_runs.write_all(cls.folder)
        (pathlib.Path(cls.temporary.name) / "secret").write_text("42")
        (cls.folder / "gpt2" / "base" / "logs" / "link").symlink_to(cls.temporary.name)
        cls.board = Board(LOCKSTEP, cls.folder)

    @classmethod
    def tearDownClass(cls):
        code = cls.board.stop()
        cls.temporary.cleanup()
        assert code == 0, f"SIGTERM: exit code {code}"

    def test_only_who_has_the_token_is_let_in(self):
        for path in ("/", "/main.js", "/api/runs", "/api/live", "/?token=", "/?token=x", "/nothing"):
            for headers in ({}, {"Cookie": f"lockstep_board_{self.board.port}=0"}, {"Cookie": "x=" + self.board.token}):
                status, _, body = self.board.request(path, headers=headers)
                self.assertEqual(status, 403, path)
                self.assertNotIn(self.board.token.encode(), body)
        status, headers, _ = self.board.request(f"/?token={self.board.token}", headers={})
        self.assertEqual((status, headers["Location"]), (303, "/"))
        self.assertIn("HttpOnly", headers["Set-Cookie"])
        self.assertIn("SameSite=Strict", headers["Set-Cookie"])
        self.assertEqual(self.board.request("/", headers={"Cookie": headers["Set-Cookie"].split(";")[0]})[0], 200)

    def test_every_answer_has_strict_headers(self):
        for path in ("/", "/board.css", "/dygraph.js", "/api/runs", "/api/run?run=nothing", "/nothing"):
            _, headers, _ = self.board.request(path)
            policy = headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertNotIn("http", policy)
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff", path)
            self.assertEqual(headers["Referrer-Policy"], "no-referrer", path)
            self.assertEqual(headers["Cache-Control"], "no-store", path)

    def test_it_is_for_reading_only(self):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            self.assertEqual(self.board.request("/api/runs", method, body=b"x" * 100)[0], 405, method)

    def test_nothing_outside_of_the_directory_is_read(self):
        for path in ("/../secret", "/%2e%2e/secret", "//etc/passwd", "/api/../../secret", "/api/run?run=../runs",
                     "/api/run?run=..", "/api/run?run=/etc", "/api/run?run=gpt2/../gpt2/base", "/api/run?run=gpt2%00",
                     "/api/log?run=gpt2/base&file=link/secret", "/api/log?run=gpt2/base&file=../../../secret",
                     "/api/log?run=gpt2/base&file=..%2f..%2f..%2f..%2fsecret", "/api/log?run=..&file=x"):
            status, _, body = self.board.request(path)
            self.assertEqual(status, 404, path)
            self.assertNotIn(b"42", body)
        self.assertEqual(self.board.request("/api/series?run=gpt2/base&rank=-1")[0], 400)

    def test_curves_are_few_points_of_all_of_the_run(self):
        answer = self.board.get("series", run="gpt2/base", name=["loss", "lr"], points=100)
        loss = answer["series"]["loss"]
        self.assertEqual(answer["lines"], 1200)
        self.assertLessEqual(len(loss["step"]), 100)
        self.assertEqual(loss["step"][-1], 1200)
        part = self.board.get("series", run="gpt2/base", name="loss", points=100, **{"from": 10, "to": 20})
        self.assertEqual(part["series"]["loss"]["step"], list(range(10, 21)))
        ranks = self.board.get("ranks", run="ranks64", name="time/total", columns=40)
        self.assertEqual((len(ranks["values"]), len(ranks["values"][0])), (64, 40))
        self.assertGreater(ranks["values"][37][-1], 1.3 * ranks["values"][36][-1])

    def test_what_is_new_is_told(self):
        run = self.folder / "grows"
        make_runs.write_metrics(run, 0, 1, 5)
        connection = http.client.HTTPConnection("127.0.0.1", self.board.port, timeout=LIMIT)
        connection.request("GET", "/api/live?run=grows", headers={"Cookie": self.board.cookie})
        answer = connection.getresponse()
        self.assertTrue(answer.getheader("Content-Type").startswith("text/event-stream"))

        def next_step():
            while True:
                line = answer.readline().decode()
                self.assertTrue(line, "the stream has ended")
                if line.startswith("data: "):
                    return json.loads(line[6:])["step"]
        self.assertEqual(next_step(), 5)
        make_runs.write_metrics(run, 0, 6, 9)
        while next_step() != 9:
            pass
        connection.close()

    def test_killed_and_started_again_it_shows_the_same(self):
        def shown(board):
            return [board.get("runs")["runs"], board.get("run", run="gpt2/base"), board.get("events", run="gpt2/base"),
                    board.get("series", run="gpt2/base", name=["loss", "time/total"])]
        runs = pathlib.Path(self.temporary.name) / "again"
        make_runs.write_all(runs)
        with Board(LOCKSTEP, runs) as first:
            before = shown(first)
            first.kill()
        with Board(LOCKSTEP, runs) as second:
            self.assertEqual(shown(second), before)

    def test_nonsense_and_silence_harm_nobody(self):
        for nonsense in (b"\x16\x03\x01\x02\x00", b"GET " + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                         b"\r\n\r\n", b"GET /api/run?run=%zz&run=%00 HTTP/1.1\r\nCookie: " + self.board.cookie.encode() + b"\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", self.board.port), timeout=LIMIT) as connection:
                connection.sendall(nonsense)
                connection.shutdown(socket.SHUT_WR)
                try:
                    while connection.recv(65536):
                        pass
                except ConnectionError:
                    pass
        silent = [socket.create_connection(("127.0.0.1", self.board.port), timeout=LIMIT) for _ in range(50)]
        self.assertEqual(self.board.request("/api/runs")[0], 200)
        for connection in silent:
            connection.close()


    def test_many_may_come_at_once(self):
        # Those whom the kernel turns away would try again after seconds; here they would never get in.
        request = f"GET /api/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nCookie: {self.board.cookie}\r\n\r\n".encode()
        connections = []
        self.board.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(60):
                connections.append(socket.create_connection(("127.0.0.1", self.board.port), timeout=LIMIT))
                connections[-1].sendall(request)
        finally:
            self.board.process.send_signal(signal.SIGCONT)
        for connection in connections:
            self.assertIn(b" 200 ", connection.recv(65536).splitlines()[0])
            connection.close()


class CommandLine(unittest.TestCase):
    def refused(self, *arguments):
        done = subprocess.run([LOCKSTEP, "board", *arguments], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_mistakes_are_one_line(self):
        self.assertIn("lockstep board DIR", self.refused())
        self.assertIn("no directory", self.refused("/nonexistent/runs"))
        self.assertIn("--token-file", self.refused("--host", "0.0.0.0", "/tmp"))

    def test_a_port_that_is_taken_is_said(self):
        with tempfile.TemporaryDirectory() as folder, Board(LOCKSTEP, folder) as first:
            done = subprocess.run([LOCKSTEP, "board", "--port", str(first.port), folder], capture_output=True, text=True,
                                  timeout=LIMIT)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"port {first.port}", done.stderr)

    def test_a_token_can_be_given_and_an_interrupt_ends_it(self):
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder) / "token"
            token.touch(0o600)
            token.write_text("0123456789abcdef\n")
            with Board(LOCKSTEP, folder, "--token-file", str(token)) as board:
                self.assertEqual(board.token, "0123456789abcdef")
                self.assertEqual(board.get("runs")["runs"], [])
                board.process.send_signal(signal.SIGINT)
                self.assertEqual(board.process.wait(LIMIT), 0)


class Top(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="lsboard")
        self.addCleanup(self.temporary.cleanup)
        make_runs.write_metrics(pathlib.Path(self.temporary.name) / "a\x1b[2Jb", 0, 1, 40)

    def test_it_prints_once_where_there_is_no_terminal(self):
        for options in ([], ["--json"]):
            done = subprocess.run([LOCKSTEP, "top", *options, self.temporary.name], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("\x1b", done.stdout)
            self.assertIn("running", done.stdout)
            self.assertIn("40", done.stdout)
        done = subprocess.run([LOCKSTEP, "top"], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))

    def test_in_a_terminal_it_follows_and_q_ends_it(self):
        outer, inner = pty.openpty()
        process = subprocess.Popen([LOCKSTEP, "top", self.temporary.name], stdin=inner, stdout=inner, env={**os.environ, "TERM": "xterm"})
        os.close(inner)
        text = b""
        while b"loss" not in text:
            text += os.read(outer, 65536)
        os.write(outer, b"jkq")
        try:
            while chunk := os.read(outer, 65536):
                text += chunk
        except OSError:
            pass  # the other end is closed
        self.assertEqual(process.wait(LIMIT), 0)
        os.close(outer)
        self.assertTrue(text.endswith(b"\x1b[?25h\x1b[?1049l"), "the terminal is not as it was")
        self.assertIn(b"a?[2Jb", text)


if __name__ == "__main__":
    test_script.main(argv=sys.argv[:1])
