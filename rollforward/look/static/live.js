// Keeps the parts of a page marked data-live fresh, by asking for the page again.
// Pauses on request and in hidden tabs; never replaces what somebody is using. A fresh part that is
// not marked any more is the last: the page had waited for it.
"use strict";
(() => {
  const PERIOD_MS = 2000;
  const IDLE_MS = 5000;
  const SLOWEST_MS = 15000;
  const toggle = document.querySelector("[data-live-toggle]");
  const status = document.querySelector("[data-live-status]");
  if (!document.querySelector("[data-live]") || !toggle || !status) return;

  let paused = sessionStorage.getItem("paused") === "yes";
  let waitMs = PERIOD_MS;
  let timer = 0;
  let tag = "";

  // As the server writes them (words.py): what only grows older needs no new page.
  const age = (seconds) => {
    const s = Math.abs(seconds);
    if (s < 60) return `${Math.floor(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    return s < 86400 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
  };
  const relative = (s) => (Math.abs(s) < 1 ? "now" : s > 0 ? `${age(s)} ago` : `in ${age(s)}`);
  const grow = () => {
    for (const time of document.querySelectorAll("time[datetime]:not(.clock)")) {
      const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = time.dataset.as === "age" ? age(seconds) : relative(seconds);
      if (time.textContent !== text) time.textContent = text;
    }
  };

  const show = (word) => {
    status.textContent = word;
    status.dataset.word = word;
  };

  const render = () => {
    toggle.textContent = paused ? "Resume" : "Pause";
    toggle.setAttribute("aria-pressed", String(paused));
    document.documentElement.toggleAttribute("data-paused", paused);
    show(paused ? "Paused" : "Live");
  };

  const isInUse = (part) => {
    const active = document.activeElement;
    const typing = active && part.contains(active) && active.matches("input, select, textarea, pre");
    const selection = document.getSelection();
    const selecting = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    // A press would change the row that takes the place of the one that somebody has read.
    const pointing = part.querySelector("button:hover");
    return typing || selecting || pointing || part.querySelector("input:checked");
  };

  const replace = (part, fresh) => {
    if (isInUse(part) || part.innerHTML === fresh.innerHTML) return;
    const opened = new Map();
    for (const details of part.querySelectorAll("details[id]")) opened.set(details.id, details.open);
    const nameOf = (element) => element.dataset.key || element.getAttribute("href") || "";
    const key = part.contains(document.activeElement) ? nameOf(document.activeElement) : "";
    part.replaceChildren(...fresh.childNodes);
    part.toggleAttribute("data-live", fresh.hasAttribute("data-live"));
    for (const [id, open] of opened) {
      const details = document.getElementById(id);
      if (details) details.open = open;
    }
    if (!key) return;
    for (const element of part.querySelectorAll("[data-key], a[href]")) {
      if (nameOf(element) !== key) continue;
      element.focus({ preventScroll: true });
      break;
    }
  };

  const refresh = async () => {
    try {
      const headers = { Accept: "text/html" };
      if (tag) headers["If-None-Match"] = tag;
      const response = await fetch(location.href, { headers });
      const isSame = response.status === 304;
      if (!response.ok && !isSame) throw new Error(String(response.status));
      if (isSame) {
        waitMs = Math.min(waitMs * 1.25, IDLE_MS);
        if (!paused) show("Live");
        if (!paused) grow();
        return;
      }
      tag = response.headers.get("ETag") || "";
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh && !paused) replace(part, fresh);
      }
      waitMs = PERIOD_MS;
      if (!paused) show("Live");
    } catch {
      waitMs = Math.min(waitMs * 2, SLOWEST_MS);
      if (!paused) show("Reconnecting");
    }
  };

  const next = () => {
    clearTimeout(timer);
    const isOver = !document.querySelector("[data-live]");
    toggle.hidden = isOver;
    status.hidden = isOver;
    if (isOver || paused || document.hidden) return;
    timer = setTimeout(() => refresh().then(next), waitMs);
  };

  toggle.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    render();
    next();
  });
  document.addEventListener("visibilitychange", next);
  render();
  next();
})();
