// The curves of a run.
import { get } from "./api.js";
import { Chart } from "./charts.js";
import { choice, colour, h, replace, seriesColour, toggle } from "./dom.js";

const FIRST = ["loss", "eval", "val", "lr", "grad_norm", "tok/s", "samples/s", "mfu"];

/** [[title, [names]]]: what belongs together is one chart, what matters comes first. */
export function groups(names) {
  const charts = new Map();
  for (const name of names) {
    const together = /^(time|mem)\//.exec(name);
    const title = together ? { time: "step time, ms", mem: "memory, GB" }[together[1]] : name;
    if (!charts.has(title)) charts.set(title, []);
    charts.get(title).push(name);
  }
  const rank = (title) => {
    const found = FIRST.findIndex((each) => title === each || title.startsWith(`${each}_`) || title.includes(`/${each}`) || title.startsWith(`${each}/`));
    return found < 0 ? FIRST.length + (charts.get(title).length > 1 ? 0 : 1) : found;
  };
  return [...charts.entries()].sort((a, b) => rank(a[0]) - rank(b[0]));
}

/** How curves are shown; the same on all pages, and kept. */
export const look = (() => {
  const kept = JSON.parse(localStorage.getItem("lockstep-look") ?? "{}");
  return { smoothing: 0, log: false, byTime: false, ...kept,
    save() { localStorage.setItem("lockstep-look", JSON.stringify({ smoothing: this.smoothing, log: this.log, byTime: this.byTime })); } };
})();

export function lookControls(changed) {
  const set = (key) => (value) => { look[key] = value; look.save(); changed(key); };
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, "aria-label": "Smoothing",
    oninput: () => { shown.textContent = Number(slider.value).toFixed(2); set("smoothing")(Number(slider.value)); } });
  slider.value = look.smoothing;
  const shown = h("output", {}, look.smoothing.toFixed(2));
  return [h("label", { class: "toggle" }, "smoothing", slider, shown),
    toggle("log", look.log, set("log"), "Logarithmic (l)"),
    toggle("time", look.byTime, set("byTime"), "Time instead of steps (s)")];
}

export function overviewTab({ id, run }) {
  let rank = 0, filter = "", range = null, charts = new Map(), events = [];
  const grid = h("div", { class: "charts" });
  const search = h("input", { type: "search", placeholder: "Filter metrics  /", "aria-label": "Filter metrics",
    oninput: () => { filter = search.value.toLowerCase(); build(); update(); } });
  const ranks = h("span", {});
  const tools = h("div", { class: "tools" });
  const element = h("div", {}, tools, grid);

  function drawTools() {
    replace(tools, search, ranks, h("span", { class: "spacer" }), lookControls((key) => {
      if (key === "byTime") zoom(null);
      else redraw();
    }));
  }

  function build() {
    for (const chart of charts.values()) chart.chart.destroy();
    charts = new Map();
    for (const [title, names] of groups(run().metrics)) {
      const wanted = names.filter((name) => name.toLowerCase().includes(filter) || title.toLowerCase().includes(filter));
      if (wanted.length) charts.set(title, { names: wanted, chart: new Chart(title, { onzoom: zoom }) });
    }
    replace(grid, charts.size ? [...charts.values()].map((each) => each.chart.element)
      : h("p", { class: "none" }, run().metrics.length ? "No metric has such a name." : "No metrics yet."));
  }

  function zoom(to, from) {
    range = to;
    for (const { chart } of charts.values()) if (chart !== from) chart.zoomTo(range);
    update();
  }

  function redraw() {
    for (const { chart, series } of charts.values()) {
      if (!series) continue;
      chart.mark(events.map((event) => ({ x: look.byTime ? event.time : event.step, colour: colour("bad") })));
      chart.show(series.map((each, index) => ({ ...each, x: look.byTime ? each.time : each.step, colour: seriesColour(index) })), look);
    }
  }

  async function update() {
    if (run().metrics.length !== count) {
      count = run().metrics.length;
      build();
    }
    const list = run().ranks;
    replace(ranks, list.length > 1 ? choice(list.map((each) => [each, `rank ${each}`]), rank,
      (value) => { rank = Number(value); update(); }, { "aria-label": "Rank" }) : null);
    const names = [...charts.values()].flatMap((each) => each.names);
    if (!names.length) return;
    const [answer, told] = await Promise.all([
      get("series", { run: id, rank, name: names.slice(0, 64), points: 600, axis: look.byTime ? "time" : "step",
        from: range?.[0], to: range?.[1] }),
      get("events", { run: id }),
    ]);
    events = told.recoveries.map((story) => ({ time: story.time, step: story.step }));
    for (const each of charts.values()) {
      each.series = each.names.filter((name) => answer.series[name]).map((name) => ({ label: name, ...answer.series[name] }));
    }
    redraw();
  }

  let count = run().metrics.length;
  drawTools();
  build();
  const onresize = () => { for (const { chart } of charts.values()) chart.resize(); };
  window.addEventListener("resize", onresize);
  return {
    element, update,
    keys(event) {
      if (event.key === "l") look.log = !look.log;
      else if (event.key === "s") look.byTime = !look.byTime;
      else return false;
      look.save();
      drawTools();
      if (event.key === "s") zoom(null);
      else redraw();
      return true;
    },
    close() {
      window.removeEventListener("resize", onresize);
      for (const { chart } of charts.values()) chart.destroy();
    },
  };
}
