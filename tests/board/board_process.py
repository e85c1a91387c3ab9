"""Starts `lockstep board` for tests and benchmarks, and asks it things."""

import http.client
import json
import os
import re
import subprocess
import urllib.parse

LIMIT = 60  # seconds; only ever reached by a failure


class Board:
    def __init__(self, lockstep, folder, *options):
        self.process = subprocess.Popen([lockstep, "board", "--port", "0", *options, str(folder)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"(http://([\w.]+):(\d+)/)\?token=([\w-]+)", line)
        if not found:
            self.stop()
            raise RuntimeError(f"lockstep board said '{line}'")
        self.url, self.base, self.port, self.token = found[0], found[1], int(found[3]), found[4]
        self.cookie = f"lockstep_board_{self.port}={self.token}"

    def request(self, path, method="GET", headers=None, body=None):
        """(status, headers, body); the path is sent as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request(method, path, body, {"Cookie": self.cookie} if headers is None else headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, what, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        status, _, body = self.request(f"/api/{what}?{query}")
        if status != 200:
            raise RuntimeError(f"{what}: {status} {body!r}")
        return json.loads(body)

    def memory(self):
        """Bytes that are resident."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        self.process.terminate()
        code = self.process.wait(LIMIT)
        self.process.stdout.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
