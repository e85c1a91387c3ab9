// Numbers and times as people read them.

export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size >= 1e5 || size < 1e-3) {
    const [mantissa, power] = value.toExponential(digits - 2).split("e");
    return size >= 1e5 && size < 1e15 ? compact(value) : `${Number(mantissa)}e${Number(power)}`;
  }
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 });
}

export function count(value, word) {
  return `${number(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function compact(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3))} ${unit}`.replace(" ", "\u202f");
  }
  return String(Number(value.toPrecision(3)));
}

export function axis(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e4) return compact(value);
  if (size < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(4)));
}

export function bytes(value) {
  for (const [limit, unit] of [[2 ** 40, "TB"], [2 ** 30, "GB"], [2 ** 20, "MB"], [2 ** 10, "KB"]]) {
    if (value >= limit) return `${Number((value / limit).toPrecision(3))} ${unit}`;
  }
  return `${value} B`;
}

/** Seconds from a time to another; null where the first is not known, as before a run's first line. */
export const between = (from, to) => (from ? to - from : null);

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) seconds = 0;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
}

export function milliseconds(value) {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`;
}

export function ago(time) {
  if (!time) return "–";
  const seconds = Date.now() / 1000 - time;
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

export function clock(time, precise = false) {
  if (!time) return "–";
  const date = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return precise ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** Day and minute. */
export function day(time) {
  return date(time).slice(5, 16);
}

export function date(time) {
  if (!time) return "–";
  const value = new Date(time * 1000);
  const two = (n) => String(n).padStart(2, "0");
  return `${value.getFullYear()}-${two(value.getMonth() + 1)}-${two(value.getDate())} ${clock(time)}`;
}
