// Charts as files: drawn once more, as a figure with axes and a legend, from the data that is shown.
import { axis } from "./format.js";
import { colour, svg } from "./dom.js";

const WIDTH = 960, HEIGHT = 420, LEFT = 64, RIGHT = 20, TOP = 42, BOTTOM = 64;

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function ticks(from, to, count) {
  const rough = (to - from) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const list = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) list.push(at);
  return list;
}

export function figure(chart) {
  const [from, to] = chart.graph.xAxisRange();
  const [low, high] = chart.graph.yAxisRange();
  const log = chart.log;
  const scale = (value) => log ? Math.log10(Math.max(value, 1e-300)) : value;
  const x = (value) => LEFT + (value - from) / (to - from || 1) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM
    - (scale(value) - scale(low)) / (scale(high) - scale(low) || 1) * (HEIGHT - TOP - BOTTOM);
  const text = (content, attributes) => svg("text", {
    fill: colour("text"), "font-family": "system-ui, sans-serif", "font-size": 12, ...attributes }, content);
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDTH, height: HEIGHT,
    viewBox: `0 0 ${WIDTH} ${HEIGHT}` },
  svg("rect", { width: WIDTH, height: HEIGHT, fill: colour("panel") }),
  text(chart.title, { x: LEFT, y: 24, "font-size": 15, "font-weight": 600 }));
  const rows = log ? ticks(scale(low), scale(high), 6).map((each) => 10 ** each) : ticks(low, high, 6);
  for (const value of rows) {
    root.append(svg("path", { d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`, stroke: colour("grid") }),
      text(axis(value), { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }));
  }
  for (const value of ticks(from, to, 8)) {
    root.append(text(chart.xLabel(value), { x: x(value), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }));
  }
  root.append(svg("path", { d: `M${LEFT} ${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, stroke: colour("line") }));
  let place = LEFT;
  for (const each of chart.series) {
    let path = "", pen = "M";
    each.x.forEach((at, i) => {
      const value = each.shown[i];
      if (at < from || at > to || value === null || !Number.isFinite(value) || (log && value <= 0)) return;
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    if (path) root.append(svg("path", { d: path, fill: "none", stroke: each.colour, "stroke-width": 1.6 }));
    root.append(svg("rect", { x: place, y: HEIGHT - 24, width: 14, height: 4, fill: each.colour }),
      text(each.label, { x: place + 20, y: HEIGHT - 18 }));
    place += 40 + 7 * each.label.length;
  }
  return root;
}

function figureText(chart) {
  return new XMLSerializer().serializeToString(figure(chart));
}

export function saveSvg(chart) {
  if (chart.graph) save(new Blob([figureText(chart)], { type: "image/svg+xml" }), `${chart.title}.svg`);
}

export function savePng(chart) {
  if (!chart.graph) return;
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * WIDTH;
    canvas.height = 2 * HEIGHT;
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.drawImage(image, 0, 0, WIDTH, HEIGHT);
    canvas.toBlob((blob) => save(blob, `${chart.title}.png`), "image/png");
  };
  image.src = URL.createObjectURL(new Blob([figureText(chart)], { type: "image/svg+xml" }));
}

/** A cell that a spreadsheet takes for text, never for a formula. */
export function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function saveCsv(chart) {
  if (!chart.series) return;
  const bands = chart.series.some((each) => each.min);
  const header = [chart.options.byTime ? "time" : "step"];
  for (const each of chart.series) {
    header.push(each.label);
    if (bands) header.push(`${each.label} min`, `${each.label} max`);
  }
  const lines = [header.map(csvCell).join(",")];
  for (const [x, ...row] of chart.data) {
    const cells = row.flatMap((value) => bands ? [value?.[1], value?.[0], value?.[2]] : [value]);
    lines.push([x, ...cells].map(csvCell).join(","));
  }
  save(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), `${chart.title}.csv`);
}

