"""The page in a real browser.

browser_test.py LOCKSTEP PLAYWRIGHT ARTEFACTS      PLAYWRIGHT: a folder with the package playwright;
                                                   screenshots go to ARTEFACTS
"""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import zlib

LOCKSTEP, TOOLS, ARTEFACTS = (os.path.abspath(path) for path in sys.argv[1:4])
sys.path.insert(0, TOOLS)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import make_runs  # noqa: E402
from board_process import Board  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import test_script  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT = 30_000  # ms


def colours_of(png):
    """How many different bytes a picture has in it: a blank one has a few."""
    data, at, packed = png, 8, b""
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += 12 + length
    return len(set(zlib.decompress(packed)))


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="lsboard")
        cls.folder = pathlib.Path(cls.temporary.name)
        make_runs.write_all(cls.folder)
        os.makedirs(ARTEFACTS, exist_ok=True)
        cls.board = Board(LOCKSTEP, cls.folder)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        cls.board.stop()
        cls.temporary.cleanup()

    def setUp(self):
        self.context = self.browser.new_context(viewport={"width": 1360, "height": 860}, accept_downloads=True)
        self.context.set_default_timeout(LIMIT)
        expect.set_options(timeout=LIMIT)
        self.page = self.context.new_page()
        self.problems = []
        self.page.on("console", self.said)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked(request.url))
        self.page.goto(self.board.url)

    def said(self, message):
        # The page draws and never reads back; charts() below does.
        if message.type in ("error", "warning") and "readback operations" not in message.text:
            self.problems.append(message.text)

    def asked(self, url):
        if not url.startswith((self.board.base, "blob:", "data:")):
            self.problems.append(f"asked for {url}")

    def tearDown(self):
        self.context.close()
        self.assertEqual(self.problems, [])

    def open(self, run, tab=""):
        from urllib.parse import quote
        self.page.goto(f"{self.board.base}#/run/{quote(run, safe='')}{'/' + tab if tab else ''}")
        expect(self.page.locator("h1")).to_have_text(run)

    def picture(self, name):
        path = os.path.join(ARTEFACTS, f"{name}.png")
        self.page.screenshot(path=path)
        self.assertGreater(colours_of(pathlib.Path(path).read_bytes()), 60, f"{name} is blank")

    def charts(self):
        """Titles of charts that have something drawn in them."""
        return self.page.evaluate("""() => [...document.querySelectorAll('.chart')].filter((chart) => {
            const canvas = chart.querySelector('canvas');
            if (!canvas) return false;
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return data.some((value) => value > 0);
        }).map((chart) => chart.dataset.chart)""")

    def wait_for_charts(self, *titles):
        for title in titles:
            expect(self.page.locator(f".chart[data-chart='{title}'] canvas").first).to_be_visible()
            expect(self.page.locator(f".chart[data-chart='{title}'] .legend .entry").first).to_be_visible()
        self.assertLessEqual(set(titles), set(self.charts()))

    def test_the_list_shows_states_is_searched_sorted_and_walked_by_keys(self):
        rows = self.page.locator("tbody tr")
        expect(rows).to_have_count(4)
        expect(self.page.locator("tr[data-run='ranks64'] .badge")).to_have_text("failed")
        expect(self.page.locator("tr[data-run='gpt2/base'] .badge")).to_have_text("finished")
        self.assertNotIn("token", self.page.url)
        self.picture("runs")
        self.page.keyboard.press("/")
        self.page.keyboard.type("gpt2")
        expect(rows).to_have_count(2)
        self.page.keyboard.press("Escape")
        self.page.get_by_role("button", name="run", exact=True).click()
        expect(rows.first).to_have_attribute("data-run", "gpt2/base")
        self.page.get_by_role("button", name="run ↑").click()
        expect(rows.first).to_have_attribute("data-run", "gpt2/wide")
        self.page.keyboard.press("j")
        self.page.keyboard.press("Enter")
        expect(self.page.locator("h1")).to_have_text("gpt2/wide")

    def test_a_run_that_has_said_nothing_yet_has_taken_no_time(self):
        folder = self.folder / "young"
        self.addCleanup(shutil.rmtree, folder)
        (folder / "metrics").mkdir(parents=True)
        (folder / "metrics" / "rank_0.jsonl").write_text("")
        row = self.page.locator("tr[data-run='young'] td")
        expect(row.filter(has_text="–").nth(1)).to_be_visible()
        self.assertNotRegex(" ".join(row.all_inner_texts()), r"\d d ")
        self.open("young")
        expect(self.page.locator(".tiles")).to_contain_text("–")
        self.assertNotRegex(self.page.locator(".tiles").inner_text(), r"\d d ")

    def test_a_run_has_curves_that_can_be_zoomed_and_saved(self):
        self.open("gpt2/base")
        self.wait_for_charts("loss", "lr", "grad_norm", "step time, ms")
        expect(self.page.locator(".tiles")).to_contain_text("gradient norm")
        self.picture("overview")
        chart = self.page.locator(".chart[data-chart=loss]")
        box = chart.locator(".plot").bounding_box()
        asked = []
        self.page.on("request", lambda request: "from=" in request.url and asked.append(request.url))
        self.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 60)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 62, steps=4)
        self.page.mouse.up()
        expect(self.page.locator(".chart.zoomed")).not_to_have_count(0)
        self.page.wait_for_function("() => Number(document.querySelector('.chart[data-chart=loss]').dataset.from) > 300")
        self.assertTrue(asked, "no finer data was asked for")
        self.picture("zoomed")
        chart.locator(".plot").dblclick()
        expect(self.page.locator(".chart.zoomed")).to_have_count(0)
        for ending, begin in (("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"step,")):
            with self.page.expect_download() as waiting:
                chart.hover()
                chart.get_by_role("button", name=ending).click()
            content = pathlib.Path(waiting.value.path()).read_bytes()
            self.assertTrue(content.startswith(begin), content[:80])
            self.assertEqual(waiting.value.suggested_filename, f"loss.{ending}")
        self.page.keyboard.press("l")
        expect(self.page.get_by_label("log", exact=True)).to_be_checked()
        self.wait_for_charts("loss", "never", "bad")
        self.picture("logarithmic")

    def test_runs_are_compared_with_what_differs_in_their_configurations(self):
        for run in ("gpt2/base", "gpt2/wide"):
            self.page.get_by_label(f"Choose {run}").check()
        self.page.get_by_role("button", name="Compare 2").click()
        self.wait_for_charts("loss", "lr")
        expect(self.page.locator(".chart[data-chart=loss] .legend .entry")).to_have_count(2)
        expect(self.page.locator("table.config")).to_contain_text("model.width")
        expect(self.page.locator("table.config")).not_to_contain_text("max_steps")
        slider = self.page.get_by_label("Smoothing")
        slider.fill("0.9")
        self.picture("compare")
        self.page.get_by_label("time", exact=True).check()
        expect(self.page.locator(".chart[data-chart=loss] .dygraph-axis-label-x").first).to_contain_text("min")

    def test_64_ranks_are_a_map_and_a_slow_one_is_named(self):
        self.open("ranks64", "ranks")
        expect(self.page.locator(".slow")).to_contain_text("rank 37")
        self.assertEqual(self.page.evaluate("() => document.querySelector('canvas.heat').height"), 64)
        self.page.locator("canvas.heat").hover(position={"x": 300, "y": 200})
        expect(self.page.locator(".heat-tip")).to_contain_text("rank ")
        self.picture("ranks")
        self.page.get_by_label("What is shown").select_option("median")
        expect(self.page.locator(".heat-legend")).to_contain_text("×")
        self.page.get_by_label("What is shown").select_option("share")
        expect(self.page.locator(".heat-legend")).to_contain_text("100 %")

    def test_a_recovery_is_told_with_its_stages(self):
        self.open("gpt2/base", "timeline")
        story = self.page.locator(".story")
        expect(story).to_contain_text("rank 1 lost")
        expect(story).to_contain_text("state received")
        expect(story).to_contain_text("680 ms")
        self.picture("timeline")
        self.page.get_by_label("only trouble").check()
        expect(self.page.locator(".events tbody tr")).to_have_count(1)

    def test_nodes_that_come_and_go_are_in_the_timeline(self):
        self.open("gpt2/wide", "timeline")
        events = self.page.locator(".events tbody")
        expect(events).to_contain_text("node7 (10.0.0.7), 1 worker")
        self.page.get_by_label("only trouble").check()
        expect(events).not_to_contain_text("node7 (10.0.0.7)")
        expect(events).to_contain_text("node8: nothing was heard of it for 15 s")

    def test_logs_are_shown_and_searched(self):
        self.open("gpt2/base", "logs")
        expect(self.page.locator("pre.log")).to_contain_text("step 1200:")
        self.page.get_by_label("Search this log").fill("warning")
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".match")).to_have_count(3)
        expect(self.page.locator(".match").first).to_contain_text("<b>twice</b>")
        self.picture("logs")
        self.page.get_by_label("Search this log").fill("")
        expect(self.page.locator("pre.log")).to_contain_text("step 1200:")

    def test_the_other_parts_of_a_run(self):
        self.open("gpt2/wide", "snapshots")
        expect(self.page.locator("tbody")).to_contain_text("has another length than its manifest says")
        expect(self.page.locator("tbody")).to_contain_text("complete")
        self.page.keyboard.press("6")
        expect(self.page.locator(".sample").first).to_contain_text("dcba (at step 1200)")
        self.page.keyboard.press("8")
        expect(self.page.locator("table.config")).to_contain_text("model.width")
        self.page.keyboard.press("5")
        self.wait_for_charts("CPU, %", "GPU, %")
        self.picture("system")

    def test_a_running_job_is_followed_and_its_failure_appears(self):
        run = self.folder / "live"
        make_runs.write_metrics(run, 0, 1, 30)
        (run / "events.jsonl").write_text(make_runs.beginning(2))
        make_runs.write_logs(run, 1, range(1, 31))
        try:
            expect(self.page.locator("tr[data-run=live]")).to_be_visible()  # without a reload
            self.open("live")
            self.wait_for_charts("loss")
            expect(self.page.locator(".tiles")).to_contain_text("30")
            make_runs.write_metrics(run, 0, 31, 77)
            expect(self.page.locator(".tiles")).to_contain_text("77")
            self.page.keyboard.press("4")
            expect(self.page.locator("pre.log")).to_contain_text("step 30:")
            make_runs.write_logs(run, 1, [31])
            expect(self.page.locator("pre.log")).to_contain_text("step 31:")
            self.page.keyboard.press("3")
            expect(self.page.locator(".events tbody tr").first).to_be_visible()
            expect(self.page.locator(".story")).to_have_count(0)
            with open(run / "events.jsonl", "a") as file:
                file.write(make_runs.recovery(5, 1, 1, 77))
            expect(self.page.locator(".story")).to_contain_text("ended by SIGKILL")
            self.picture("live")
        finally:
            shutil.rmtree(run)

    def test_hostile_names_are_text(self):
        self.open(make_runs.HOSTILE)
        expect(self.page.locator(".chart-title").filter(has_text=make_runs.HOSTILE_METRIC)).to_be_visible()
        self.picture("hostile")
        for key, place in (("3", ".events"), ("4", "pre.log"), ("8", "table.config")):
            self.page.keyboard.press(key)
            expect(self.page.locator(place)).to_contain_text(make_runs.HOSTILE)
        self.assertEqual(self.page.locator("main img, main script").count(), 0)
        self.page.goto(f"{self.board.base}#/compare?run={make_runs.HOSTILE.replace(' ', '+')}&run=gpt2%2Fbase")
        expect(self.page.locator(".compare-legend")).to_contain_text(make_runs.HOSTILE)

    def test_dark_and_on_a_phone(self):
        self.page.keyboard.press("t")
        self.open("gpt2/base")
        self.wait_for_charts("loss")
        self.assertIn(self.page.evaluate("() => document.documentElement.dataset.theme"), ("dark", "light"))
        self.picture("dark")
        self.page.set_viewport_size({"width": 390, "height": 800})
        self.page.reload()
        self.wait_for_charts("loss")
        self.assertLessEqual(self.page.evaluate("() => document.documentElement.scrollWidth"), 390)
        self.picture("phone")

    def test_a_path_that_leads_out_is_refused(self):
        self.page.goto(f"{self.board.base}#/run/..%2F..%2Fetc")
        expect(self.page.locator(".problem")).to_contain_text("no such run")
        # The browser itself notes the 404, which is as it should be.
        self.assertTrue(all("404" in problem for problem in self.problems), self.problems)
        self.problems.clear()


if __name__ == "__main__":
    test_script.main(argv=sys.argv[:1])
