// Elements. Everything that comes from a run goes through here as text: nothing is ever parsed as HTML.

/** h("a", {href: "#/", class: "x", onclick: f}, "text", child, ...) */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, String(value));
  }
  put(element, ...children);
  return element;
}

function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  put(element, ...children);
  return element;
}

/** A <select> of [value, text] pairs or of values. */
export function choice(options, value, onchange, properties = {}) {
  const select = h("select", { ...properties, onchange: () => onchange(select.value) },
    options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value: key }, text);
    }));
  select.value = value;
  return select;
}

export function toggle(text, checked, onchange, title) {
  const box = h("input", { type: "checkbox", onchange: () => onchange(box.checked) });
  box.checked = checked;
  return h("label", { class: "toggle", title }, box, text);
}

let hide;
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(hide);
  hide = setTimeout(() => place.classList.remove("shown"), 3500);
}

/** Colours of the theme, as the style sheet has them. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Told apart also by those who do not see red and green alike (after Okabe and Ito, darkened).
const SERIES = ["#2f6f9f", "#c2571a", "#2d8a6b", "#a64d8c", "#b58900", "#5b5ea6", "#8c564b", "#5f7f2f",
  "#0093a8", "#c0392b"];
const SERIES_DARK = ["#6cb2e6", "#f0965a", "#5fcfa8", "#e08cc6", "#e6c34d", "#a5a8f0", "#c9a08f", "#a9cf6b",
  "#4fd0e3", "#f07f72"];
export function seriesColour(index) {
  const list = isDark() ? SERIES_DARK : SERIES;
  return list[index % list.length];
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
