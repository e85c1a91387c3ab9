// What happened, when: events on a line, recoveries with their stages, a list.
import { get } from "./api.js";
import { colour, h, replace, seriesColour, svg } from "./dom.js";
import { clock, date, duration, milliseconds, number } from "./format.js";

const LANES = [
  ["failures", /^(worker_failed|failure|worker_hang|ranks_rejected|records_dropped|node_lost)$/, "bad"],
  ["recoveries", /^(revoked|replaced|recovered|left_out|rejoins|restart)/, "accent"],
  ["job", /^(job_|epoch_start|signal|warning|note|node_joined)/, "text"],
  ["ranks", /^(worker_|recovers|spare_|straggler)/, "calm"],
  ["program", /./, "dim"],
];
const lane = (event) => event.from ? LANES.length - 1 : LANES.findIndex(([, pattern]) => pattern.test(event.kind));
const LOUD = /failed|failure|hang|rejected|dropped|warning|straggler|node_lost/;
const HIDDEN = new Set(["time", "mono_ns", "kind", "host", "epoch", "slot", "event", "from"]);

function said(event) {
  if (event.kind === "node_lost") return `${event.node}: ${event.reason}`;
  if (event.kind === "node_joined") return `${event.node} (${event.address}), ${event.workers} worker${event.workers === 1 ? "" : "s"}`;
  const text = event.text ?? event.reason ?? event.failure?.error?.message;
  if (typeof text === "string" && text) return text;
  return Object.entries(event).filter(([name, value]) => !HIDDEN.has(name) && value !== null && value !== "" && typeof value !== "object")
    .map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`).join(", ");
}

function line(events, stories, room) {
  const width = Math.max(640, room - 28), left = 84, height = 26 * LANES.length + 30;
  const first = events[0].time, last = Math.max(events.at(-1).time, first + 1);
  const x = (time) => left + (time - first) / (last - first) * (width - left - 16);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "timeline", role: "img", "aria-label": "Events over time" });
  for (const story of stories) {
    const from = x(story.time), to = x(story.time + story.ms / 1000);
    picture.append(svg("rect", { x: from, y: 4, width: Math.max(2, to - from), height: 26 * LANES.length, fill: colour("bad"), opacity: 0.16 }));
  }
  LANES.forEach(([name], index) => {
    const y = 26 * index + 17;
    picture.append(svg("text", { x: 0, y: y + 4, class: "lane" }, name),
      svg("path", { d: `M${left} ${y}H${width - 16}`, stroke: colour("grid") }));
  });
  // Dots that would lie on each other are one.
  const taken = new Set();
  for (const event of events) {
    const index = lane(event), at = Math.round(x(event.time) / 3);
    if (taken.has(`${index} ${at}`)) continue;
    taken.add(`${index} ${at}`);
    picture.append(svg("circle", { cx: x(event.time), cy: 26 * index + 17, r: LOUD.test(event.kind) ? 5 : 3.5, fill: colour(LANES[index][2]) },
      svg("title", {}, `${clock(event.time, true)} ${event.kind} ${said(event)}`)));
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("text", { x: left + part * (width - left - 16), y: height - 6, class: "tick",
      "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, clock(first + part * (last - first))));
  }
  return picture;
}

function story(each) {
  const width = 600, stages = each.stages, end = Math.max(1, each.ms, ...stages.map((stage) => stage.at_ms));
  const picture = svg("svg", { viewBox: `0 0 ${width} 16`, class: "stages", preserveAspectRatio: "none" });
  let before = 0;
  const names = [...stages].sort((a, b) => a.at_ms - b.at_ms).map((stage, index) => {
    const from = before, to = stage.at_ms;
    before = to;
    picture.append(svg("rect", { x: from / end * width, y: 0, width: Math.max(1, (to - from) / end * width - 1), height: 16, fill: seriesColour(index) },
      svg("title", {}, `${stage.name}: ${milliseconds(to - from)}`)));
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = seriesColour(index);
    return h("li", {}, swatch, stage.name, " ", h("b", {}, milliseconds(to - from)));
  });
  return h("article", { class: "story" },
    h("header", {}, h("b", {}, `rank ${each.lost} lost`), h("span", { class: "dim" }, date(each.time)), h("span", { class: "spacer" }),
      each.done ? h("span", {}, `all go on after step ${number(each.step)}, `, h("b", {}, milliseconds(each.ms))) : h("span", { class: "badge failed" }, "not over")),
    h("p", {}, each.reason), picture, h("ul", { class: "chips" }, names));
}

export function timelineTab({ id }) {
  let told = { events: [], recoveries: [] }, filter = "", loud = false;
  const picture = h("div", { class: "scroll" }), stories = h("div", {}), body = h("tbody");
  const search = h("input", { type: "search", placeholder: "Search events  /", "aria-label": "Search events",
    oninput: () => { filter = search.value.toLowerCase(); list(); } });
  const only = h("input", { type: "checkbox", onchange: () => { loud = only.checked; list(); } });
  const count = h("span", { class: "dim" });
  const element = h("div", {}, picture, stories, h("div", { class: "tools" }, search, h("label", { class: "toggle" }, only, "only trouble"), count),
    h("div", { class: "scroll" }, h("table", { class: "list events" }, h("thead", {}, h("tr", {},
      ["time", "event", "rank", "epoch", "host", "what"].map((name) => h("th", {}, name)))), body)));

  function list() {
    const wanted = told.events.filter((event) => (!loud || LOUD.test(event.kind))
      && (!filter || `${event.kind} ${said(event)} ${event.host ?? ""}`.toLowerCase().includes(filter)));
    count.textContent = `${number(wanted.length)} events`;
    replace(body, wanted.slice(-500).reverse().map((event) => h("tr", { class: LOUD.test(event.kind) ? "loud" : "" },
      h("td", { class: "dim time", title: date(event.time) }, clock(event.time, true)), h("td", {}, event.kind),
      h("td", { class: "num" }, event.slot ?? ""), h("td", { class: "num dim" }, event.epoch ?? ""),
      h("td", { class: "dim" }, event.host ?? (event.from ? "program" : "")), h("td", { class: "what" }, said(event)))));
  }

  async function update() {
    told = await get("events", { run: id });
    told.events = told.events.filter((event) => typeof event.kind === "string" && typeof event.time === "number");
    replace(picture, told.events.length ? line(told.events, told.recoveries, element.clientWidth) : h("p", { class: "none" }, "No events: the run was not started by lockstep run."));
    const losses = told.recoveries.filter((each) => each.done);
    replace(stories, told.recoveries.length ? h("h3", {}, `${told.recoveries.length} recover${told.recoveries.length === 1 ? "y" : "ies"}`,
      losses.length ? h("small", {}, ` ${duration(losses.reduce((sum, each) => sum + each.ms, 0) / 1000)} in all`) : null) : null,
    [...told.recoveries].reverse().slice(0, 20).map(story));
    list();
  }
  return { element, update };
}
