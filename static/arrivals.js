// Says how many comments were written since a post was opened, and shows them when asked: below
// all that is there, so that the text being read stays where it is. Without this script: a link.
//
// It is told by a stream of events that there are some, or, where the server has no room for one
// more stream, asks a question that costs next to nothing, less and less often. Each answer says
// where to look next, so nothing comes twice. A page that is hidden, or that nobody has touched
// for long, does not ask, and listens no more.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const SLOWEST_MS = 60000;
  const AT_LEAST_MS = 400;
  // So long it goes without looking when nobody says that there is something.
  const UNTOLD_MS = 120000;
  const IDLE_MS = 600000;

  const bar = document.querySelector("[data-arrivals]");
  const place = document.querySelector("[data-arrived]");
  const link = document.querySelector("[data-arrivals-link]");
  if (!bar || !place || !link) return;
  const count = bar.querySelector("[data-arrivals-count]");
  const { updates, streams } = bar.dataset;

  const waiting = document.createElement("ol"); // What came, until somebody asks to see it.
  waiting.className = "comments";
  let where = bar.dataset.arrivals;
  let pause = EVERY_MS;
  let timer = 0;
  let isLooking = false;
  let touched = performance.now();
  let looked = performance.now();
  let source = null; // The stream of events, if there is one.
  let hasRoom = streams === "yes";
  let seen = ""; // The id of the last change that was heard of.
  let isTold = false;

  const isIdle = () => performance.now() - touched > IDLE_MS;

  const look = async () => {
    isTold = false;
    looked = performance.now();
    const response = await fetch(where);
    if (!response.ok) throw new Error(String(response.status));
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("new-comments");
    if (!found) throw new Error("no comments in the answer");
    const fresh = [...found.querySelectorAll(".comment")]
      .filter((each) => !document.getElementById(each.id) && !waiting.querySelector("#" + CSS.escape(each.id)));
    waiting.append(...fresh);
    where = found.dataset.next || where;
    const all = waiting.children.length;
    const text = all === 1 ? "1 new comment" : `${all} new comments`;
    if (fresh.length && count.textContent !== text) count.textContent = text;
    bar.hidden = !all;
    pause = fresh.length ? EVERY_MS : Math.min(SLOWEST_MS, pause * 1.3);
  };

  // Whether there may be something.
  const hasNews = async () => {
    if (!updates || isTold || performance.now() - looked > UNTOLD_MS) return true;
    if (source) return false;
    const response = await fetch(updates, { cache: "no-store" });
    if (!response.ok) return true;
    const latest = await response.json();
    const isNew = latest.id !== seen;
    seen = latest.id;
    pause = Math.max(latest.again_ms, Math.min(SLOWEST_MS, pause * 1.3));
    return isNew;
  };

  const listen = () => {
    if (source || !updates || !hasRoom) return;
    source = new EventSource(`${updates}/events?after=${encodeURIComponent(seen)}`);
    source.addEventListener("changed", (event) => {
      seen = event.lastEventId;
      isTold = true;
      next();
    });
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return;
      hasRoom = false; // Until the page is looked at again.
      hush();
      next();
    });
  };

  const hush = () => {
    source?.close();
    source = null;
  };

  const next = () => {
    clearTimeout(timer);
    timer = 0;
    if (document.hidden || isIdle()) {
      hush();
      return;
    }
    listen();
    if (isLooking) return;
    timer = setTimeout(async () => {
      timer = 0;
      isLooking = true;
      try {
        if (await hasNews()) await look();
      } catch {
        pause = SLOWEST_MS;
      }
      isLooking = false;
      next();
    }, isTold ? AT_LEAST_MS : source ? SLOWEST_MS : pause);
  };

  bar.querySelector("[data-arrivals-show]").addEventListener("click", () => {
    if (!waiting.children.length) return;
    const shown = waiting.cloneNode(false);
    shown.append(...waiting.children);
    place.append(shown);
    place.hidden = false;
    bar.hidden = true;
    place.focus();
  });
  // Somebody is here: if it stopped, it looks again.
  const touch = () => {
    const stopped = isIdle();
    touched = performance.now();
    if (stopped) {
      pause = EVERY_MS;
      next();
    }
  };
  for (const kind of ["pointerdown", "keydown", "scroll", "focus"]) addEventListener(kind, touch, { passive: true });
  document.addEventListener("visibilitychange", () => {
    touched = performance.now();
    pause = EVERY_MS;
    hasRoom = streams === "yes";
    next();
  });
  link.hidden = true;
  next();
})();
