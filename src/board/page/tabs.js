// The smaller parts of a run: configuration, snapshots, samples, the machine.
import { get } from "./api.js";
import { Chart } from "./charts.js";
import { choice, h, replace, seriesColour } from "./dom.js";
import { bytes, date, number } from "./format.js";

/** {"a": {"b": 1}} -> [["a.b", "1"]] */
export function flat(config, before = "") {
  if (config === null || typeof config !== "object") return [[before || "value", JSON.stringify(config)]];
  return Object.entries(config).flatMap(([name, value]) => {
    const path = before ? `${before}.${name}` : name;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) return flat(value, path);
    return [[path, typeof value === "string" ? value : JSON.stringify(value)]];
  });
}

export function configTab({ id, run }) {
  const body = h("tbody");
  let all = [];
  const search = h("input", { type: "search", placeholder: "Search  /", "aria-label": "Search the configuration", oninput: draw });
  const element = h("div", {}, h("div", { class: "tools" }, search), h("table", { class: "list config" }, body));
  function draw() {
    const wanted = search.value.toLowerCase();
    const rows = all.filter(([name, value]) => `${name} ${value}`.toLowerCase().includes(wanted));
    replace(body, rows.length ? rows.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))
      : h("tr", {}, h("td", { class: "none" }, "Nothing is known.")));
  }
  return {
    element,
    async update() {
      const about = run();
      const job = Object.fromEntries(["run_id", "host", "world_size", "log_directory"].map((name) => [name, about[name]]).filter(([, value]) => value));
      if (about.command.length) job.command = about.command.join(" ");
      all = [...flat((await get("config", { run: id })).config), ...flat(job, "job")];
      draw();
    },
  };
}

export function snapshotsTab({ id }) {
  const element = h("div", {});
  return {
    element,
    async update() {
      const { snapshots } = await get("snapshots", { run: id });
      replace(element, snapshots.length ? h("div", { class: "scroll" }, h("table", { class: "list" },
        h("thead", {}, h("tr", {}, h("th", {}, "snapshot"), h("th", { class: "num" }, "step"), h("th", { class: "num" }, "size"), h("th", {}, "written"), h("th", {}, "files"))),
        h("tbody", {}, snapshots.map((each) => h("tr", {},
          h("td", {}, each.name, " ", each.latest ? h("span", { class: "badge finished" }, "latest") : null, " ", each.best ? h("span", { class: "badge running" }, "best") : null),
          h("td", { class: "num" }, number(each.step)), h("td", { class: "num" }, bytes(each.bytes)), h("td", { class: "dim" }, date(each.time)),
          h("td", {}, each.damage ? h("span", { class: "badge failed" }, each.damage) : "complete"))))),
      h("p", { class: "dim" }, "Complete: all files have the lengths of the manifest. `lockstep snapshot verify` compares checksums, too."))
        : h("p", { class: "none" }, "No snapshots."));
    },
  };
}

export function samplesTab({ id }) {
  let texts = [], name = "";
  const names = h("span", {}), list = h("div", { class: "samples" });
  const element = h("div", {}, h("div", { class: "tools" }, names), list);
  function draw() {
    const shown = texts.filter((text) => !name || text.name === name);
    replace(list, shown.length ? [...shown].reverse().slice(0, 100).map((text) => h("article", { class: "sample" },
      h("header", {}, h("b", {}, text.name), h("span", { class: "dim" }, `step ${number(text.step)}`), h("span", { class: "spacer" }), h("span", { class: "dim" }, date(text.time))),
      h("pre", {}, text.text))) : h("p", { class: "none" }, "No texts. Tracker::text() keeps what a model says."));
  }
  return {
    element,
    async update() {
      texts = (await get("texts", { run: id })).texts;
      const known = [...new Set(texts.map((text) => text.name))];
      replace(names, known.length > 1 ? choice([["", "all"], ...known], name, (value) => { name = value; draw(); }) : null);
      draw();
    },
  };
}

const SENSORS = [
  ["CPU, %", /^(cpu|proc\.cpu)$/], ["load", /^load$/], ["memory, %", /^memory_percent$/], ["memory, MB", /^(memory_usedMB|proc\.memory\.rssMB)$/],
  ["network, MB/s", /^network\./], ["disk, MB/s", /^(proc\.)?disk\./], ["GPU, %", /^gpu\.\d+\.gpu$/],
  ["GPU memory, %", /^gpu\.\d+\.memoryAllocated$/], ["GPU power, W", /^gpu\.\d+\.powerWatts$/], ["GPU temperature, °C", /^gpu\.\d+\.temp$/],
];

export function systemTab({ id, run }) {
  let rank = 0;
  const charts = new Map(), grid = h("div", { class: "charts" }), tools = h("div", { class: "tools" });
  const element = h("div", {}, tools, grid);
  async function update() {
    const ranks = run().record_ranks;
    if (!ranks.length) return replace(grid, h("p", { class: "none" }, "No samples of the machine."));
    if (!ranks.includes(rank)) rank = ranks[0];
    replace(tools, ranks.length > 1 ? choice(ranks.map((each) => [each, `rank ${each}`]), rank, (value) => { rank = Number(value); update(); }, { "aria-label": "Rank" }) : null);
    const { series } = await get("system", { run: id, rank });
    const names = Object.keys(series);
    for (const [title, pattern] of [...SENSORS, ["others", null]]) {
      const own = names.filter((name) => pattern ? pattern.test(name) : !SENSORS.some(([, each]) => each.test(name)) && !/Bytes$|threads/.test(name));
      if (!own.length) continue;
      if (!charts.has(title)) {
        if (!charts.size) grid.replaceChildren();
        charts.set(title, new Chart(title));
        grid.append(charts.get(title).element);
      }
      charts.get(title).show(own.map((name, index) => ({ label: name, colour: seriesColour(index), x: series[name].time, ...series[name] })),
        { log: false, smoothing: 0, byTime: true });
    }
    if (!charts.size) replace(grid, h("p", { class: "none" }, "No samples of the machine yet; they come every ten seconds."));
  }
  return { element, update, close() { for (const chart of charts.values()) chart.destroy(); } };
}
