// Ranks over time: a row for each, a column for some steps.
import { get } from "./api.js";
import { choice, h, isDark, replace } from "./dom.js";
import { clock, number } from "./format.js";

// From calm to loud, in steps of equal lightness; reads without red and green.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const RAMP_LIGHT = [[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];

function shade(part) {
  const ramp = isDark() ? RAMP : RAMP_LIGHT;
  const at = Math.max(0, Math.min(1, part)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(at)), rest = at - low;
  return ramp[low].map((value, i) => Math.round(value + (ramp[low + 1][i] - value) * rest));
}

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

/** Each value as a part of, or in relation to, others; null where that has no meaning. */
export function related(map, mode, whole) {
  if (mode === "share") {
    return map.values.map((row, r) => row.map((value, c) => {
      const all = whole?.values[r]?.[c];
      return value === null || !all ? null : 100 * value / all;
    }));
  }
  if (mode !== "median") return map.values;
  const middle = map.times.map((_, c) => median(map.values.map((row) => row[c])));
  return map.values.map((row) => row.map((value, c) => value === null || !middle[c] ? null : value / middle[c]));
}

function limits(values, mode) {
  const all = values.flat().filter((value) => value !== null).sort((a, b) => a - b);
  if (!all.length) return [0, 1];
  if (mode === "share") return [0, 100];
  const low = all[Math.floor(0.02 * (all.length - 1))], high = all[Math.ceil(0.98 * (all.length - 1))];
  if (mode === "median") return [Math.min(0.5, low), Math.max(1.5, high)];
  // Small differences stay calm: they must not look like trouble.
  const middle = all[Math.floor(all.length / 2)], room = Math.abs(middle) || 1;
  return [Math.min(low, middle - 0.15 * room), Math.max(high, middle + 0.35 * room)];
}

const MODES = [["value", "values"], ["median", "× median of ranks"], ["share", "% of the step"]];

export function ranksTab({ id, run }) {
  const names = run().metrics;
  let name = names.find((each) => each === "time/total") ?? names.find((each) => each.startsWith("time/")) ?? names[0];
  let mode = "value", map, whole, values = [], bounds = [0, 1], cell = 1;
  const canvas = h("canvas", { class: "heat", role: "img", "aria-label": "Ranks over steps", tabindex: 0 });
  const axis = h("div", { class: "heat-axis" }), scale = h("canvas", { class: "heat-scale", width: 160, height: 10 });
  const rows = h("div", { class: "heat-rows" }), tip = h("div", { class: "heat-tip" }, " ");
  const low = h("span", {}), high = h("span", {}), slow = h("div", { class: "slow" });
  const element = h("div", {}, h("div", { class: "tools" },
    names.length ? choice(names, name, (value) => { name = value; update(); }, { "aria-label": "Metric" }) : null,
    choice(MODES, mode, (value) => { mode = value; update(); }, { "aria-label": "What is shown" }),
    h("span", { class: "spacer" }), h("span", { class: "heat-legend" }, low, scale, high)),
  tip, h("div", { class: "heat-box" }, rows, h("div", { class: "heat-main" }, canvas, axis)), slow);

  function draw() {
    if (!map || !map.ranks.length) {
      replace(slow, h("p", { class: "none" }, "No rank has written metrics yet."));
      return;
    }
    values = related(map, mode, whole);
    bounds = limits(values, mode);
    const columns = map.times.length, height = map.ranks.length;
    cell = Math.max(6, Math.min(22, Math.floor(520 / height)));
    // A pixel of the picture is a cell; the browser makes it larger.
    canvas.width = columns;
    canvas.height = height;
    canvas.style.height = `${cell * height}px`;
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, height);
    values.forEach((row, r) => row.forEach((value, c) => {
      if (value === null) return;
      const [red, green, blue] = shade((value - bounds[0]) / (bounds[1] - bounds[0]));
      image.data.set([red, green, blue, 255], 4 * (r * columns + c));
    }));
    context.putImageData(image, 0, 0);
    const every = Math.max(1, Math.ceil(14 / cell));
    replace(rows, map.ranks.map((rank, index) => {
      const label = h("span", {}, index % every === 0 ? rank : "");
      label.style.height = `${cell}px`;
      return label;
    }));
    replace(axis, [0, 0.25, 0.5, 0.75, 1].map((part) =>
      h("span", {}, number(Math.round(map.first_step + part * (map.last_step - map.first_step))))));
    const strip = scale.getContext("2d");
    for (let x = 0; x < 160; ++x) {
      strip.fillStyle = `rgb(${shade(x / 159).join(",")})`;
      strip.fillRect(x, 0, 1, 10);
    }
    const unit = mode === "share" ? " %" : mode === "median" ? " ×" : "";
    low.textContent = number(bounds[0], 3) + unit;
    high.textContent = number(bounds[1], 3) + unit;
    drawSlow();
  }

  // Who is slower than the others, over the last fifth of what is shown.
  function drawSlow() {
    const from = Math.floor(0.8 * map.times.length);
    const own = map.ranks.map((rank, r) => ({ rank, value: median(map.values[r].slice(from)) })).filter((each) => each.value !== null);
    const middle = median(own.map((each) => each.value));
    const far = own.filter((each) => middle && Math.abs(each.value / middle - 1) > 0.25).sort((a, b) => b.value - a.value).slice(0, 8);
    replace(slow, far.length ? [h("h3", {}, "Away from the others, lately"), h("ul", { class: "chips" }, far.map((each) =>
      h("li", {}, h("b", {}, `rank ${each.rank}`), ` ${number(each.value, 3)}, ${(each.value / middle).toFixed(2)} × the median`)))]
      : own.length > 1 ? h("p", { class: "dim" }, "No rank is away from the others' median by more than a quarter, lately.") : null);
  }

  canvas.addEventListener("mousemove", (event) => {
    if (!map?.ranks.length) return;
    const box = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left) / box.width * map.times.length);
    const r = Math.floor((event.clientY - box.top) / box.height * map.ranks.length);
    const value = values[r]?.[c];
    if (value === undefined) return;
    const step = map.first_step + (c + 0.5) / map.times.length * (map.last_step - map.first_step);
    tip.textContent = `rank ${map.ranks[r]} · about step ${number(Math.round(step))} · ${map.times[c] ? clock(map.times[c]) : ""} · `
      + (value === null ? "nothing known" : `${name} ${number(value)}${mode === "share" ? " %" : mode === "median" ? " × median" : ""}`);
  });
  canvas.addEventListener("mouseleave", () => { tip.textContent = " "; });

  async function update() {
    if (!name) return draw();
    const columns = Math.max(40, Math.min(240, Math.floor((element.clientWidth || 900) / 5)));
    const total = mode === "share" ? get("ranks", { run: id, name: "time/total", columns }) : undefined;
    [map, whole] = await Promise.all([get("ranks", { run: id, name, columns }), total]);
    draw();
  }
  return { element, update };
}

