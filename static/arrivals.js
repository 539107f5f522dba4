// Says how many comments were written since a post was opened, and shows them when asked: below
// all that is there, so that the text being read stays where it is. Without this script: a link.
//
// It is told that there are some, or asks, less and less often (updates.js). Each answer says where
// to look next, so nothing comes twice. A page that is hidden, or that nobody has touched for
// long, does not ask, and listens no more.
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
  const waiting = document.createElement("ol"); // What came, until somebody asks to see it.
  waiting.className = "comments";
  let where = bar.dataset.arrivals;
  let pause = EVERY_MS;
  let timer = 0;
  let isLooking = false;
  let touched = performance.now();
  let looked = performance.now();
  const told = window.updates.open(bar, () => next());

  const isIdle = () => performance.now() - touched > IDLE_MS;
  const rests = () => document.hidden || isIdle();

  const look = async () => {
    told.isChanged = false;
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
    if (!told.isThere || told.isChanged || performance.now() - looked > UNTOLD_MS) return true;
    if (told.isListening()) return false;
    const againMs = await told.ask();
    pause = Math.max(againMs, Math.min(SLOWEST_MS, pause * 1.3));
    return told.isChanged;
  };

  const next = () => {
    clearTimeout(timer);
    timer = 0;
    if (rests()) {
      told.hush();
      return;
    }
    told.listen();
    if (isLooking) return;
    timer = setTimeout(async () => {
      timer = 0;
      if (rests()) return next();
      isLooking = true;
      try {
        if (await hasNews()) await look();
      } catch {
        pause = SLOWEST_MS;
      }
      isLooking = false;
      next();
    }, told.isChanged ? AT_LEAST_MS : told.isListening() ? SLOWEST_MS : pause);
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
    told.tryAgain();
    next();
  });
  link.hidden = true;
  next();
})();
