// What the ranks have printed.
import { get } from "./api.js";
import { choice, h, replace, toggle } from "./dom.js";
import { bytes, number } from "./format.js";

const MOST_SHOWN = 400_000;  // letters; what is older is taken out of the page

/** The text with every place where the word is marked. */
function marked(text, word) {
  if (!word) return [text];
  const parts = [], lower = text.toLowerCase(), wanted = word.toLowerCase();
  // Letters whose lower case has another length would shift the places.
  if (lower.length !== text.length) return [text];
  let at = 0;
  for (let found = lower.indexOf(wanted); found >= 0; found = lower.indexOf(wanted, at)) {
    parts.push(text.slice(at, found), h("mark", {}, text.slice(found, found + word.length)));
    at = found + word.length;
  }
  parts.push(text.slice(at));
  return parts;
}

// Colours of terminals are left out.
const plain = (text) => text.replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "").replace(/[^\n]*\r(?!\n)/g, "");

export function logsTab({ id, run }) {
  let files = [], file, begin = 0, next = 0, follow = true, word = "", busy = false;
  const pane = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
  const place = h("span", {}), info = h("span", { class: "dim" });
  const search = h("input", { type: "search", placeholder: "Search this log  /", "aria-label": "Search this log",
    onkeydown: (event) => { if (event.key === "Enter") find(); }, oninput: () => { if (!search.value) find(); } });
  const earlier = h("button", { class: "quiet", onclick: () => older() }, "earlier lines");
  const element = h("div", { class: "logs" }, h("div", { class: "tools" }, place, search, info, h("span", { class: "spacer" }),
    earlier, toggle("follow", follow, (on) => { follow = on; if (on) update(); }, "Go to what is new")), pane);

  function drawPlace() {
    replace(place, files.length ? choice(files.map((each) => [each.file, `${each.attempt} · rank ${each.rank} · ${each.name} (${bytes(each.bytes)})`]), file,
      (value) => { file = value; word = search.value = ""; open(); }, { "aria-label": "Log file" }) : null);
  }

  async function open() {
    if (!file) {
      const elsewhere = run().log_directory;
      replace(pane, h("span", { class: "none" }, elsewhere
        ? `No logs below this run. Its launcher wrote to ${elsewhere}; without --redirects or --tee ranks print to the console only.`
        : "No logs: the run was not started by lockstep run."));
      return;
    }
    const part = await get("log", { run: id, file });
    begin = part.offset;
    next = part.next;
    pane.textContent = plain(part.text);
    show(part.size);
    pane.scrollTop = pane.scrollHeight;
  }

  function show(size) {
    earlier.disabled = begin === 0 || Boolean(word);
    info.textContent = bytes(size);
  }

  async function older() {
    const from = Math.max(0, begin - 65_536);
    const part = await get("log", { run: id, file, offset: from, bytes: begin - from });
    // Up to the first whole line, unless it is the file's beginning.
    const cut = from === 0 ? 0 : part.text.indexOf("\n") + 1;
    const height = pane.scrollHeight;
    begin = from + new TextEncoder().encode(part.text.slice(0, cut)).length;
    pane.prepend(plain(part.text.slice(cut)));
    pane.scrollTop += pane.scrollHeight - height;
    show(part.size);
  }

  async function find() {
    word = search.value;
    if (!word) return open();
    const answer = await get("log", { run: id, file, find: word, offset: 0 });
    replace(pane, answer.matches.map((match) => h("div", { class: "match" }, marked(plain(match.text), word))),
      answer.matches.length ? null : h("span", { class: "none" }, "No line has it."));
    info.textContent = `${number(answer.matches.length)}${answer.searched_to < answer.size ? " or more" : ""} lines of ${bytes(answer.size)}`;
    earlier.disabled = true;
  }

  async function update() {
    if (busy) return;
    busy = true;
    try {
      const list = (await get("logs", { run: id })).logs;
      const same = list.length === files.length;
      files = list;
      if (!files.some((each) => each.file === file)) {
        // What went wrong is in the newest standard error, most of the time.
        const newest = files.filter((each) => each.attempt === files.at(-1)?.attempt && each.bytes > 0);
        file = (newest.find((each) => each.name === "stderr.log") ?? newest[0] ?? files[0])?.file;
        drawPlace();
        await open();
        return;
      }
      if (!same) drawPlace();
      if (!follow || word) return;
      const part = await get("log", { run: id, file, offset: next, bytes: 262_144 });
      if (part.size < next) return await open();
      if (!part.text) return;
      const low = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 40;
      next = part.next;
      pane.append(plain(part.text));
      if (pane.textContent.length > MOST_SHOWN) return await open();
      show(part.size);
      if (low) pane.scrollTop = pane.scrollHeight;
    } finally {
      busy = false;
    }
  }

  // Logs grow without the run's other files.
  const timer = setInterval(() => { if (follow && !document.hidden) update(); }, 2000);
  return { element, update, close: () => clearInterval(timer) };
}
