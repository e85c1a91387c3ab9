// What the server has to say. See docs/board.md.

export class ApiError extends Error {}

/** get("series", {run: "a", name: ["loss", "lr"]}) */
export async function get(what, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined || value === null) continue;
    for (const each of Array.isArray(value) ? value : [value]) query.append(name, each);
  }
  let response;
  try {
    response = await fetch(`/api/${what}?${query}`, { credentials: "same-origin" });
  } catch {
    throw new ApiError("the board does not answer; is `lockstep board` still running?");
  }
  if (response.status === 403) throw new ApiError("the board wants its token: open the address that it printed");
  const answer = await response.json();
  if (!response.ok) throw new ApiError(answer.error ?? `the board answered ${response.status}`);
  return answer;
}

const SETTLED = 1500;  // ms after which no answer is older than the news

/**
 * Calls `changed` when a run (or any, without one) has something new, and once more a moment after the last news:
 * answers may be a little older than those. Returns how to stop.
 */
export function live(run, changed) {
  const state = document.getElementById("link-state");
  const source = new EventSource(run === undefined ? "/api/live" : `/api/live?${new URLSearchParams({ run })}`);
  let again;
  source.addEventListener("change", (event) => {
    state.textContent = "live";
    state.className = "link-state on";
    const news = JSON.parse(event.data);
    changed(news);
    clearTimeout(again);
    again = setTimeout(() => changed(news), SETTLED);
  });
  source.addEventListener("error", () => {
    state.textContent = "no connection";
    state.className = "link-state off";
  });
  return () => {
    clearTimeout(again);
    source.close();
    state.textContent = "";
  };
}

/** Runs `work` at most once every `pause` ms, and once more for calls in between. */
export function throttled(work, pause) {
  let waiting = false, again = false;
  return async function call() {
    if (waiting) {
      again = true;
      return;
    }
    waiting = true;
    try {
      await work();
    } finally {
      setTimeout(() => {
        waiting = false;
        if (again) {
          again = false;
          call();
        }
      }, pause);
    }
  };
}
