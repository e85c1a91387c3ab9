// The page: which view is shown, keys, colours.
import { h, replace, toast } from "./dom.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { compareView } from "./compare.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
let view;   // {title, crumbs, element, keys?, redraw?, close?}
let turn = 0;

/** "#/run/a%2Fb/logs?x=1" -> {path: ["run", "a/b", "logs"], query} */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const names = path.split("/").filter(Boolean).map((name) => {
    try {
      return decodeURIComponent(name);
    } catch {
      return name;
    }
  });
  return { path: names, query: new URLSearchParams(query) };
}

async function open() {
  const { path, query } = place();
  // A tab of the run that is shown already.
  if (path[0] === "run" && view?.run === path[1] && view.tab) {
    view.tab(path[2]);
    return;
  }
  const mine = ++turn;
  view?.close?.();
  view = undefined;
  main.setAttribute("aria-busy", "true");
  try {
    let next;
    if (path[0] === "run") next = await runView(path[1] ?? "", path[2]);
    else if (path[0] === "compare") next = await compareView(query.getAll("run"));
    else next = await runsView();
    if (mine !== turn) {
      next.close?.();
      return;
    }
    view = next;
    document.title = `${view.title} · lockstep`;
    replace(crumbs, view.crumbs);
    replace(main, view.element);
    view.shown?.();
  } catch (error) {
    if (mine !== turn) return;
    replace(crumbs);
    replace(main, h("section", { class: "problem" }, h("h1", {}, "That cannot be shown"), h("p", {}, error.message),
      h("p", {}, h("a", { href: "#/" }, "All runs"))));
  } finally {
    main.removeAttribute("aria-busy");
  }
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  view?.redraw?.();
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = dark ? "light" : "dark";
  localStorage.setItem("lockstep-theme", theme);
  setTheme(theme);
}

const KEYS = [
  ["/", "search"], ["j k", "next, previous run"], ["Enter", "open the run"], ["x", "choose a run"],
  ["c", "compare the chosen runs"], ["1 … 8", "parts of a run"], ["l", "logarithmic"], ["s", "steps or time"],
  ["t", "dark or light"], ["Esc", "back to all runs"],
];

function showHelp() {
  const dialog = document.getElementById("help");
  replace(dialog, h("h2", {}, "Keys"),
    h("dl", { class: "keys" }, KEYS.map(([key, text]) =>
      [h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))), h("dd", {}, text)])),
    h("p", { class: "dim" }, "Drag over a chart to look closer, double click for all of it."),
    h("button", { onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (location.hash.length > 2) location.hash = "#/";
    return;
  }
  if (typing) return;
  const search = main.querySelector("input[type=search]");
  if (event.key === "t") switchTheme();
  else if (event.key === "?") showHelp();
  else if (event.key === "/" && search) search.focus();
  else if (!view?.keys?.(event)) return;
  event.preventDefault();
});

document.getElementById("theme-button").addEventListener("click", switchTheme);
document.getElementById("help-button").addEventListener("click", showHelp);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
window.addEventListener("hashchange", open);
window.addEventListener("unhandledrejection", (event) => {
  toast(event.reason?.message ?? "something went wrong");
  event.preventDefault();
});
setTheme(localStorage.getItem("lockstep-theme"));
open();
