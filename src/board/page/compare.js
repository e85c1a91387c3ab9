// Several runs side by side: curves over each other, and what differs in their configurations.
import { get, live, throttled } from "./api.js";
import { Chart } from "./charts.js";
import { h, replace, seriesColour, toggle } from "./dom.js";
import { number } from "./format.js";
import { badge, runLink } from "./runs.js";
import { groups, look, lookControls } from "./overview.js";
import { flat } from "./tabs.js";

const MOST_RUNS = 10;

/** [{name, values: [text per run], differs}] */
export function difference(configs) {
  const maps = configs.map((config) => new Map(flat(config)));
  const names = [...new Set(maps.flatMap((map) => [...map.keys()]))].sort();
  return names.map((name) => {
    const values = maps.map((map) => map.get(name));
    return { name, values, differs: values.some((value) => value !== values[0]) };
  });
}

export async function compareView(ids) {
  ids = [...new Set(ids)].slice(0, MOST_RUNS);
  if (!ids.length) throw new Error("choose some runs first");
  let runs = await Promise.all(ids.map((run) => get("run", { run })));
  const configs = await Promise.all(ids.map((run) => get("config", { run })));
  let filter = "", all = false, range = null;
  const charts = new Map();
  const legend = h("ul", { class: "compare-legend" }), grid = h("div", { class: "charts" }), table = h("div", { class: "scroll" });
  const tools = h("div", { class: "tools" });
  const search = h("input", { type: "search", placeholder: "Filter metrics  /", "aria-label": "Filter metrics",
    oninput: () => { filter = search.value.toLowerCase(); build(); update(); } });
  const element = h("section", { class: "compare" }, legend, tools, grid, h("h2", {}, "Configuration"),
    toggle("also what is the same", all, (on) => { all = on; drawConfig(); }), table);

  function drawTools() {
    replace(tools, search, h("span", { class: "spacer" }), lookControls((key) => {
      if (key === "byTime") zoom(null);
      else redraw();
    }));
  }

  function drawLegend() {
    replace(legend, runs.map((run, index) => {
      const swatch = h("i", { class: "swatch" });
      swatch.style.background = seriesColour(index);
      const rest = ids.filter((id) => id !== run.id);
      return h("li", {}, swatch, h("a", { href: runLink(run.id) }, run.name), badge(run.state),
        h("span", { class: "dim" }, `step ${number(run.step)}, loss ${number(run.latest.loss ?? null)}`),
        rest.length ? h("a", { class: "remove", title: "Leave out", href: `#/compare?${new URLSearchParams(rest.map((id) => ["run", id]))}` }, "×") : null);
    }));
  }

  function build() {
    for (const chart of charts.values()) chart.chart.destroy();
    charts.clear();
    const names = [...new Set(runs.flatMap((run) => run.metrics))].filter((name) => name.toLowerCase().includes(filter));
    // One metric per chart: there is a curve for each run in it.
    for (const [title] of groups(names).flatMap(([, each]) => each.map((name) => [name]))) {
      charts.set(title, { chart: new Chart(title, { onzoom: zoom }) });
    }
    replace(grid, charts.size ? [...charts.values()].map((each) => each.chart.element) : h("p", { class: "none" }, "No metric has such a name."));
  }

  function zoom(to, from) {
    range = to;
    for (const { chart } of charts.values()) if (chart !== from) chart.zoomTo(range);
    update();
  }

  function redraw() {
    for (const { chart, series } of charts.values()) {
      if (!series) continue;
      // Over time, each from its own beginning.
      chart.show(series.map((each) => ({ ...each, colour: seriesColour(each.index),
        x: look.byTime ? each.time.map((time) => time - runs[each.index].start) : each.step })), { ...look, relative: true });
    }
  }

  async function update() {
    const names = [...charts.keys()].slice(0, 64);
    const answers = await Promise.all(runs.map((run) => {
      const own = names.filter((name) => run.metrics.includes(name));
      const begin = look.byTime ? run.start : 0;
      return own.length ? get("series", { run: run.id, name: own, points: 400, axis: look.byTime ? "time" : "step",
        from: range ? range[0] + begin : undefined, to: range ? range[1] + begin : undefined }) : { series: {} };
    }));
    for (const [name, each] of charts) {
      each.series = answers.map((answer, index) => ({ index, label: runs[index].name, ...answer.series[name] })).filter((one) => one.step);
    }
    redraw();
  }

  function drawConfig() {
    const rows = difference(configs.map((each) => each.config)).filter((row) => all || row.differs);
    replace(table, rows.length ? h("table", { class: "list config" }, h("thead", {}, h("tr", {}, h("th", {}, ""), runs.map((run) => h("th", {}, run.name)))),
      h("tbody", {}, rows.map((row) => h("tr", { class: row.differs ? "differs" : "" }, h("th", {}, row.name), row.values.map((value) => h("td", {}, value ?? "–"))))))
      : h("p", { class: "none" }, runs.length > 1 ? "Their configurations are the same." : "One run has nothing to differ from."));
  }

  drawTools();
  drawLegend();
  build();
  drawConfig();
  const refresh = throttled(async () => {
    runs = await Promise.all(ids.map((run) => get("run", { run })));
    drawLegend();
    await update();
  }, 1500);
  const onresize = () => { for (const { chart } of charts.values()) chart.resize(); };
  window.addEventListener("resize", onresize);
  let stop = () => {};
  return {
    title: "compare", element, crumbs: [h("a", { href: "#/" }, "runs"), " / ", h("span", {}, `compare ${ids.length}`)],
    shown() {
      update();
      let heard = false;
      stop = live(undefined, () => { if (heard) refresh(); heard = true; });
    },
    redraw() { drawLegend(); redraw(); },
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
      stop();
      window.removeEventListener("resize", onresize);
      for (const { chart } of charts.values()) chart.destroy();
    },
  };
}
