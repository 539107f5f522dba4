// Keeps the element marked data-live fresh while something changes in it: asks the server for
// it again and puts the parts that differ in place. Without this script there is a link.
"use strict";
(() => {
  const FAST_MS = 400;
  const SLOW_MS = 5000;
  const LOST_MS = 3000;
  const STILL_POLLS = 20; // After so many without a change it stops, until the page is looked at again.

  keepPlace();
  const live = document.querySelector("[data-live]");
  const toggle = document.querySelector("[data-live-toggle]");
  const status = document.querySelector("[data-live-status]");
  const problem = document.querySelector("[data-live-problem]");
  const announcer = document.querySelector("[data-live-announcer]");
  if (!live || !toggle || !status || !problem || !announcer) return;

  const isMoving = () => live.dataset.moving === "yes";
  let paused = false;
  let lost = false;
  let pressed = false; // A button that is held down must not be swapped away.
  let still = 0;
  let timer = 0;
  let asking = null;

  const show = () => {
    const word = paused ? "Paused" : lost ? "Reconnecting" : still < STILL_POLLS ? "Live" : "Idle";
    status.textContent = word;
    status.dataset.word = word;
    toggle.textContent = paused ? "Resume" : "Pause";
    live.classList.toggle("is-stale", lost && !paused);
    document.documentElement.toggleAttribute("data-paused", paused);
    const text = lost && !paused ? "Not connected, retrying in 3 s. This is the last state known." : "";
    if (problem.textContent !== text) {
      problem.textContent = text;
      if (text) announcer.textContent = "Not connected.";
    }
    problem.hidden = !text;
  };

  const isInUse = () => {
    const selection = document.getSelection();
    return pressed || (selection && !selection.isCollapsed && live.contains(selection.anchorNode));
  };

  // Puts a fresh part in place of an old one; what was open stays open, focus stays.
  const swap = (old, fresh) => {
    if (old.dataset.same !== undefined && old.dataset.same === fresh.dataset.same) return;
    if (old.isEqualNode(fresh)) return;
    for (const details of old.querySelectorAll("details[id]")) {
      const twin = fresh.querySelector("#" + CSS.escape(details.id));
      if (twin) twin.open = details.open;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((box) => box.scrollTop);
    const reachable = "a, button, summary, [tabindex]";
    const place = [...old.querySelectorAll(reachable)].indexOf(document.activeElement);
    old.replaceWith(fresh);
    fresh.querySelectorAll(".scroll").forEach((box, i) => { box.scrollTop = scrolled[i] || 0; });
    if (place < 0) return;
    const twins = fresh.querySelectorAll(reachable);
    const next = twins[Math.min(place, twins.length - 1)] || document.getElementById("now");
    if (next) next.focus({ preventScroll: true });
  };

  const take = (fresh) => {
    const changed = fresh.dataset.milestone !== live.dataset.milestone;
    for (const name of ["moving", "milestone", "say"]) live.dataset[name] = fresh.dataset[name];
    const parts = (of) => [...of.children].filter((part) => part.dataset.part);
    const names = (of) => parts(of).map((part) => part.dataset.part).join();
    if (names(live) === names(fresh)) {
      const newer = parts(fresh);
      parts(live).forEach((part, i) => swap(part, newer[i]));
    } else {
      live.replaceChildren(...fresh.childNodes);
    }
    if (changed && live.dataset.say) announcer.textContent = live.dataset.say;
    return changed;
  };

  const page = async (url) => {
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), 10000);
    try {
      const response = await fetch(url, { signal: asking.signal });
      if (!response.ok) throw new Error(String(response.status));
      return new DOMParser().parseFromString(await response.text(), "text/html");
    } finally {
      clearTimeout(limit);
    }
  };

  // Lists that are too long to ask for twice a second, once all has come to rest.
  const refreshLists = async () => {
    const fresh = await page(location.pathname + location.search);
    for (const list of document.querySelectorAll("[data-when-still]")) {
      const twin = fresh.getElementById(list.id);
      if (twin && !list.contains(document.activeElement)) list.replaceWith(twin);
    }
  };

  const refresh = async () => {
    const wasMoving = isMoving();
    const asked = performance.now();
    try {
      const fresh = (await page(live.dataset.live)).getElementById("live");
      if (!fresh) throw new Error("no part to update");
      lost = false;
      if (!paused && !isInUse()) {
        const changed = take(fresh);
        still = isMoving() || changed ? 0 : still + 1;
        if (wasMoving && !isMoving()) await refreshLists();
      }
    } catch {
      lost = true;
    }
    return performance.now() - asked;
  };

  const wait = (tookMs) => {
    if (lost) return LOST_MS;
    // A server that needs long is asked less often.
    return isMoving() ? Math.max(FAST_MS, 2 * tookMs) : Math.min(SLOW_MS, FAST_MS * 2 ** still);
  };

  const next = (tookMs = 0) => {
    clearTimeout(timer);
    show();
    if (paused || document.hidden || still >= STILL_POLLS) return;
    timer = setTimeout(async () => {
      timer = 0;
      next(await refresh());
    }, wait(tookMs));
  };

  toggle.addEventListener("click", () => {
    paused = !paused;
    still = 0;
    next();
  });
  document.addEventListener("visibilitychange", () => {
    still = 0;
    if (timer || !document.hidden) next();
  });
  live.addEventListener("pointerdown", () => { pressed = true; });
  addEventListener("pointerup", () => setTimeout(() => { pressed = false; }, 0));
  addEventListener("pointercancel", () => { pressed = false; });

  toggle.hidden = false;
  status.hidden = false;
  document.querySelector("[data-live-refresh]").hidden = true;
  next();

  // Forms marked data-stay lead back to this page: to where it was scrolled to, as well.
  function keepPlace() {
    try {
      const [path, top] = (sessionStorage.getItem("place") || "").split(" ");
      sessionStorage.removeItem("place");
      if (path === location.pathname && !location.hash) scrollTo(0, Number(top));
      document.addEventListener("submit", (event) => {
        if (event.target.matches("[data-stay]")) {
          sessionStorage.setItem("place", `${location.pathname} ${scrollY}`);
        }
      });
    } catch { /* No storage: the page starts at its top. */ }
  }
})();
