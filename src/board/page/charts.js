// Curves, drawn by dygraphs.
import { axis, clock, number } from "./format.js";
import { colour, h, replace } from "./dom.js";
import { saveCsv, savePng, saveSvg } from "./export.js";

// Legend and labels are ours: the library's own set styles as attributes, which the policy of this page refuses.
Dygraph.PLUGINS = [Dygraph.Plugins.Grid, Dygraph.Plugins.Axes];

/** Exponential smoothing as TensorBoard has it, without its bias at the beginning. */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

/**
 * A chart with a title, a legend that follows the pointer, and downloads.
 *
 * series: [{label, colour, x: [], mean: [], min?: [], max?: []}], x in steps or seconds.
 */
export class Chart {
  constructor(title, { onzoom, group } = {}) {
    this.title = title;
    this.onzoom = onzoom;
    this.group = group;
    this.plot = h("div", { class: "plot" });
    this.legend = h("div", { class: "legend" });
    this.marks = [];
    const menu = h("span", { class: "chart-menu" },
      h("button", { class: "quiet", title: "Whole range (double click)", onclick: () => this.reset() }, "⤢"),
      h("button", { class: "quiet", title: "Download as PNG", onclick: () => savePng(this) }, "png"),
      h("button", { class: "quiet", title: "Download as SVG", onclick: () => saveSvg(this) }, "svg"),
      h("button", { class: "quiet", title: "Download as CSV", onclick: () => saveCsv(this) }, "csv"));
    this.element = h("figure", { class: "chart", dataset: { chart: title } },
      h("figcaption", {}, h("span", { class: "chart-title", title }, title), menu), this.plot, this.legend);
  }

  /** options: {log, smoothing, byTime, relative} */
  show(series, options) {
    this.series = series.filter((each) => each.x.length > 0);
    this.options = options;
    if (!this.plot.isConnected) return;
    if (this.series.length === 0) {
      this.graph?.destroy();
      this.graph = undefined;
      replace(this.plot, h("p", { class: "none" }, "nothing yet"));
      replace(this.legend);
      return;
    }
    const bands = this.series.some((each) => each.min);
    const file = this.rows(bands, options);
    const valueRange = this.valueRange(options.log);
    const look = {
      labels: ["x", ...this.series.map((each) => each.label)],
      colors: this.series.map((each) => each.colour),
      logscale: this.log,
      valueRange,
      customBars: bands,
      gridLineColor: colour("grid"),
      axisLineColor: colour("line"),
      axes: {
        x: { axisLabelFormatter: (value) => this.xLabel(value), pixelsPerLabel: 64, drawGrid: false },
        y: { axisLabelFormatter: (value) => axis(value), axisLabelWidth: 46, pixelsPerLabel: 26 },
      },
    };
    if (this.graph) {
      // A view that was zoomed stays where it is.
      this.graph.updateOptions({ file, ...look });
    } else {
      this.plot.replaceChildren();
      this.graph = new Dygraph(this.plot, file, {
        ...look, strokeWidth: 1.6, connectSeparatedPoints: true, fillAlpha: 0.16,
        highlightCircleSize: 3, rightGap: 8, xRangePad: 4, yRangePad: 4, axisTickSize: 3, animatedZooms: false,
        digitsAfterDecimal: 6,
        highlightCallback: (event, x, points, row) => this.point(x, row),
        unhighlightCallback: () => this.point(),
        zoomCallback: (from, to) => this.zoomed(from, to),
        underlayCallback: (canvas, area, graph) => this.underlay(canvas, area, graph),
        interactionModel: this.interaction(),
      });
    }
    this.point();
  }

  // One row per place that any series has.
  rows(bands, { smoothing }) {
    const places = new Map();
    this.series.forEach((each, index) => {
      const means = smooth(each.mean, smoothing);
      each.shown = means;
      each.x.forEach((x, i) => {
        let row = places.get(x);
        if (!row) places.set(x, row = new Array(this.series.length).fill(bands ? [null, null, null] : null));
        const value = means[i];
        // Beside a smoothed curve the raw values are the band.
        row[index] = bands ? [each.min?.[i] ?? value, value, each.max?.[i] ?? value] : value;
      });
    });
    const rows = [...places.entries()].sort((a, b) => a[0] - b[0]).map(([x, row]) => [x, ...row]);
    this.data = rows;
    return rows;
  }

  // The least and the greatest value that can be shown; undefined: there is none.
  extent(log) {
    let low = Infinity, high = -Infinity;
    for (const each of this.series) {
      for (const values of [each.shown, each.min ?? [], each.max ?? []]) {
        for (const value of values) {
          if (!Number.isFinite(value) || (log && value <= 0)) continue;
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    return low <= high ? [low, high] : undefined;
  }

  // What the library shall show; null: what it finds itself. What has nothing above zero cannot be
  // logarithmic (`this.log`), and is shown as it is.
  valueRange(wanted) {
    const positive = wanted ? this.extent(true) : undefined;
    this.log = Boolean(positive);
    // The library's own choice fails where a part without such values is looked at.
    if (positive) {
      const room = Math.max(1.0001, (positive[1] / positive[0]) ** 0.05);
      return [positive[0] / room, positive[1] * room];
    }
    const extent = this.extent(false);
    if (!extent) return [0, 1];
    // Around a curve that does not change; the last bits of its values are no drama.
    const [low, high] = extent, size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low > 1e-9 * size) return null;
    return [low - (size || 1) / 10, high + (size || 1) / 10];
  }

  interaction() {
    // Dragging zooms; the wheel belongs to the page.
    const model = { ...Dygraph.defaultInteractionModel };
    model.dblclick = () => this.reset();
    return model;
  }

  xLabel(value) {
    if (!this.options.byTime) return axis(value);
    if (this.options.relative) {
      const minutes = value / 60;
      return minutes < 120 ? `${Number(minutes.toPrecision(3))} min` : `${Number((minutes / 60).toPrecision(3))} h`;
    }
    return clock(value).slice(0, 5);
  }

  point(x, row) {
    const bands = this.series.some((each) => each.min);
    const values = row === undefined ? null : this.data[row];
    replace(this.legend,
      x === undefined ? null : h("span", { class: "at" },
        this.options.byTime ? (this.options.relative ? this.xLabel(x) : clock(x)) : `step ${number(x)}`),
      this.series.map((each, index) => {
        let value = each.shown?.at(-1);
        if (values) value = bands ? values[index + 1]?.[1] : values[index + 1];
        const swatch = h("i", { class: "swatch" });
        swatch.style.background = each.colour;
        return h("span", { class: "entry", title: each.label }, swatch, h("span", { class: "label" }, each.label),
          h("b", {}, number(value ?? null)));
      }));
  }

  zoomed(from, to) {
    const whole = this.graph.xAxisExtremes();
    const zoomed = from > whole[0] || to < whole[1];
    this.element.dataset.from = from;
    this.element.dataset.to = to;
    this.element.classList.toggle("zoomed", zoomed);
    this.onzoom?.(zoomed ? [from, to] : null, this);
  }

  zoomTo(range) {
    this.graph?.updateOptions({ dateWindow: range });
    this.element.classList.toggle("zoomed", Boolean(range));
  }

  reset() {
    this.zoomTo(null);
    this.onzoom?.(null, this);
  }

  /** Places of failures and the like: [{x, colour}]. */
  mark(marks) {
    this.marks = marks;
  }

  underlay(canvas, area, graph) {
    for (const mark of this.marks) {
      const x = graph.toDomXCoord(mark.x);
      if (x < area.x || x > area.x + area.w) continue;
      canvas.fillStyle = mark.colour;
      canvas.globalAlpha = 0.55;
      canvas.fillRect(Math.round(x), area.y, 1, area.h);
      canvas.globalAlpha = 1;
    }
  }

  resize() {
    this.graph?.resize();
  }

  destroy() {
    this.graph?.destroy();
    this.graph = undefined;
  }
}
