// One run: its head, and its parts as tabs.
import { get, live, throttled } from "./api.js";
import { h, replace } from "./dom.js";
import { between, count, day, duration, number } from "./format.js";
import { badge, runLink } from "./runs.js";
import { overviewTab } from "./overview.js";
import { ranksTab } from "./heat.js";
import { timelineTab } from "./timeline.js";
import { logsTab } from "./logs.js";
import { configTab, samplesTab, snapshotsTab, systemTab } from "./tabs.js";

const TABS = [
  ["overview", "Overview", overviewTab], ["ranks", "Ranks", ranksTab], ["timeline", "Timeline", timelineTab],
  ["logs", "Logs", logsTab], ["system", "System", systemTab], ["samples", "Samples", samplesTab],
  ["snapshots", "Snapshots", snapshotsTab], ["config", "Configuration", configTab],
];

function tile(title, value, note, wide) {
  return h("div", { class: wide ? "tile wide" : "tile" }, h("span", { class: "tile-title" }, title),
    h("span", { class: "tile-value" }, value), note ? h("span", { class: "tile-note" }, note) : null);
}

function tiles(run) {
  const latest = run.latest;
  const now = Date.now() / 1000;
  const last = run.state === "running" ? now : run.end ?? run.last_time;
  const part = run.total_steps > 0 ? Math.min(1, run.step / run.total_steps) : null;
  const fill = h("i", {});
  fill.style.width = `${100 * (part ?? 0)}%`;
  const pick = (...names) => names.find((name) => latest[name] !== undefined && latest[name] !== null);
  const loss = pick("loss", "train/loss", "train_loss"), rate = pick("lr", "train/lr", "learning_rate");
  const norm = pick("grad_norm", "train/grad_norm"), speed = pick("tok/s", "tokens/s", "samples/s");
  const evaluation = Object.keys(latest).find((name) => /(eval|val).*loss/.test(name));
  return [
    h("div", { class: "tile wide" }, h("span", { class: "tile-title" }, "step"),
      h("span", { class: "tile-value" }, number(run.step),
        part === null ? null : h("small", {}, ` of ${number(run.total_steps)} · ${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`)),
      part === null ? h("span", { class: "tile-note" }, `${number(run.steps_per_second, 3)} steps/s`)
        : h("span", { class: "meter" }, fill)),
    run.state === "running" && tile("time left", duration(run.seconds_left), run.start ? `after ${duration(between(run.start, last))}` : null),
    run.state !== "running" && tile("took", duration(between(run.start, last)), day(run.start)),
    tile(speed ?? "steps/s", number(speed ? latest[speed] : run.steps_per_second, 3), speed ? `${number(run.steps_per_second, 3)} steps/s` : null),
    loss && tile("loss", number(latest[loss]), evaluation ? `${evaluation} ${number(latest[evaluation])}` : null),
    rate && tile("learning rate", number(latest[rate], 3)),
    norm && tile("gradient norm", number(latest[norm], 3)),
    latest.mfu !== undefined && tile("MFU", `${(100 * latest.mfu).toFixed(1)} %`),
    tile("ranks", number(run.world_size), run.host || null),
    tile("recoveries", number(run.recoveries), `${count(run.failures, "failure")}, ${count(run.restarts, "restart")}`),
  ];
}

export async function runView(id, first) {
  let run = await get("run", { run: id });
  let tab, name = "overview";
  const head = h("div", { class: "run-head" }), strip = h("div", { class: "tiles" });
  const nav = h("nav", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" });
  const content = h("div", { class: "tab", role: "tabpanel" });
  const element = h("section", { class: "run" }, head, strip, nav, content);

  function drawHead() {
    replace(head, h("h1", {}, run.name), badge(run.state),
      run.exit_code ? h("span", { class: "reason" }, `exit code ${run.exit_code}${run.reason ? `: ${run.reason}` : ""}`) : null,
      h("span", { class: "spacer" }),
      run.command.length ? h("code", { class: "command", title: run.command.join(" ") }, run.command.join(" ")) : null);
    replace(strip, tiles(run));
  }

  async function openTab(wanted) {
    const known = TABS.find(([key]) => key === wanted) ?? TABS[0];
    name = known[0];
    replace(nav, TABS.map(([key, text], index) => h("a", { href: runLink(id, key), role: "tab",
      "aria-selected": key === name ? "true" : "false", title: `${text} (${index + 1})` }, text)));
    tab?.close?.();
    const fresh = known[2](context);
    tab = fresh;
    replace(content, fresh.element);
    await fresh.update?.();
  }

  const context = { id, run: () => run };
  drawHead();
  const refresh = throttled(async () => {
    run = await get("run", { run: id });
    drawHead();
    await tab?.update?.();
  }, 1000);
  let stop = () => {}, timer;
  return {
    title: run.name, run: id, element, crumbs: [h("a", { href: "#/" }, "runs"), " / ", h("span", {}, run.name)],
    tab: openTab,
    shown() {
      openTab(first);
      // The first word is about what is shown already.
      let heard = false;
      stop = live(id, () => { if (heard) refresh(); heard = true; });
      timer = setInterval(() => { if (run.state === "running") drawHead(); }, 5000);
    },
    redraw: () => openTab(name),
    keys(event) {
      const index = "12345678".indexOf(event.key);
      if (index >= 0) location.hash = runLink(id, TABS[index][0]);
      else return tab?.keys?.(event) ?? false;
      return true;
    },
    close() { stop(); clearInterval(timer); tab?.close?.(); },
  };
}
