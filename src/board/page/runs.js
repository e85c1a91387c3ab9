// The list of runs.
import { get, live, throttled } from "./api.js";
import { choice, h, replace } from "./dom.js";
import { ago, between, date, duration, number } from "./format.js";

const STATES = ["running", "finished", "failed", "lost", "silent"];
const SAID = {
  running: "running", finished: "finished", failed: "failed",
  lost: "ended without a word: its launcher is gone", silent: "has written nothing for a minute",
};

export function badge(state) {
  return h("span", { class: `badge ${STATES.includes(state) ? state : ""}`, title: SAID[state] ?? "" }, state);
}

export function runLink(id, tab) {
  return `#/run/${encodeURIComponent(id)}${tab ? `/${tab}` : ""}`;
}

function progress(run) {
  const part = run.total_steps > 0 ? Math.min(1, run.step / run.total_steps) : null;
  const fill = h("i", {});
  fill.style.width = `${100 * (part ?? 0)}%`;
  return h("div", { class: "progress-cell" }, h("span", {}, number(run.step),
    part === null ? null : h("span", { class: "dim" }, ` / ${number(run.total_steps)}`)),
  part === null ? null : h("span", { class: "meter" }, fill));
}

const took = (run) => between(run.start, run.end ?? (run.state === "running" ? Date.now() / 1000 : run.updated));

const COLUMNS = [
  ["name", "run", (run) => run.name], ["state", "state", (run) => STATES.indexOf(run.state)],
  ["step", "step", (run) => run.step], ["loss", "loss", (run) => run.latest.loss ?? Infinity],
  ["world_size", "ranks", (run) => run.world_size],
  ["recoveries", "recoveries", (run) => run.recoveries], ["took", "took", took],
  ["start", "started", (run) => run.start], ["updated", "last word", (run) => run.updated],
];
const NUMERIC = new Set(["step", "loss", "world_size", "recoveries", "took"]);

export async function runsView() {
  let answer = await get("runs");
  const chosen = new Set();
  let sort = "updated", descending = true, wanted = "", only = "", at = -1, shown = [];
  const body = h("tbody"), head = h("tr"), count = h("span", { class: "dim" });
  const compare = h("button", { onclick: openCompare }, "Compare");
  const search = h("input", { type: "search", placeholder: "Search runs  /", "aria-label": "Search runs",
    oninput: () => { wanted = search.value.toLowerCase(); at = -1; draw(); } });
  const states = choice([["", "all states"], ...STATES], "", (value) => { only = value; draw(); },
    { "aria-label": "State" });

  function openCompare() {
    if (chosen.size === 0) return;
    location.hash = `#/compare?${new URLSearchParams([...chosen].map((id) => ["run", id]))}`;
  }

  function drawHead() {
    replace(head, h("th", { class: "pick" }), COLUMNS.map(([key, text]) =>
      h("th", { class: NUMERIC.has(key) ? "num" : "", "aria-sort": sort === key ? (descending ? "descending" : "ascending") : "none" },
        h("button", { class: "sort", onclick: () => {
          descending = sort === key ? !descending : key !== "name";
          sort = key;
          draw();
        } }, text, sort === key ? (descending ? " ↓" : " ↑") : ""))));
  }

  function row(run, index) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${run.name}`, onchange: () => pick(run, box.checked) });
    box.checked = chosen.has(run.id);
    const cut = run.name.lastIndexOf("/") + 1;
    return h("tr", { class: index === at ? "at" : "", dataset: { run: run.id } },
      h("td", { class: "pick" }, box),
      h("td", { class: "name" }, h("a", { href: runLink(run.id) },
        cut > 0 ? h("span", { class: "dim" }, run.name.slice(0, cut)) : null, run.name.slice(cut))),
      h("td", {}, badge(run.state)),
      h("td", { class: "num" }, progress(run)),
      h("td", { class: "num" }, number(run.latest.loss ?? null)),
      h("td", { class: "num" }, number(run.world_size)),
      h("td", { class: "num" }, run.recoveries || run.failures
        ? h("span", { title: `${run.failures} failures of ranks, ${run.restarts} restarts` }, number(run.recoveries)) : h("span", { class: "dim" }, "–")),
      h("td", { class: "num" }, duration(took(run))),
      h("td", { class: "dim wide" }, date(run.start)),
      h("td", { class: "dim" }, ago(run.updated)));
  }

  function pick(run, on) {
    if (on) chosen.add(run.id);
    else chosen.delete(run.id);
    compare.disabled = chosen.size === 0;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }

  function draw() {
    const key = COLUMNS.find(([name]) => name === sort)[2];
    shown = answer.runs.filter((run) => (!only || run.state === only)
      && (!wanted || run.name.toLowerCase().includes(wanted) || run.host.toLowerCase().includes(wanted)));
    shown.sort((a, b) => {
      const [one, other] = descending ? [key(b), key(a)] : [key(a), key(b)];
      return one < other ? -1 : one > other ? 1 : a.name < b.name ? -1 : 1;
    });
    drawHead();
    replace(body, shown.map(row));
    count.textContent = shown.length === answer.runs.length
      ? `${shown.length} run${shown.length === 1 ? "" : "s"}` : `${shown.length} of ${answer.runs.length} runs`;
    empty.hidden = answer.runs.length > 0;
    body.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  }

  const empty = h("p", { class: "none" }, "No runs yet. A run appears here as soon as it has written something below this directory.");
  const element = h("section", { class: "runs" },
    h("div", { class: "tools" }, search, states, count, h("span", { class: "spacer" }), compare),
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, head), body)), empty);
  pick({}, false);
  draw();
  const refresh = throttled(async () => { answer = await get("runs"); draw(); }, 1000);
  const stop = live(undefined, refresh);
  const timer = setInterval(draw, 10_000);
  return {
    title: "runs", element, crumbs: [h("span", { class: "dim", title: answer.directory }, answer.directory)],
    redraw: draw,
    keys(event) {
      const run = shown[at];
      if (event.key === "j" || event.key === "ArrowDown") at = Math.min(at + 1, shown.length - 1);
      else if (event.key === "k" || event.key === "ArrowUp") at = Math.max(at - 1, 0);
      else if (event.key === "Enter" && run) location.hash = runLink(run.id);
      else if (event.key === "x" && run) pick(run, !chosen.has(run.id));
      else if (event.key === "c") openCompare();
      else return false;
      draw();
      return true;
    },
    close() { stop(); clearInterval(timer); },
  };
}
