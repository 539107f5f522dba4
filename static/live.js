// Keeps the element marked data-live fresh: asks the server for it again and puts the parts that
// differ in place. What has not changed is answered by a 304. Where the element has data-updates,
// it is asked for when something is told to have changed (updates.js), and now and then without
// that, for what nobody tells. Without this script there is a link.
"use strict";
(() => {
  const FAST_MS = 400;
  const SLOW_MS = 15000;
  const LOST_MS = 3000;
  // So long it goes without looking when nobody says that something has changed.
  const UNTOLD_MOVING_MS = 2000;
  const UNTOLD_STILL_MS = 30000;
  // After so many without a change it stops, until the page is looked at again; while the part
  // says that it moves, it goes on and asks less and less often.
  const STILL_POLLS = 20;
  const NOT_CONNECTED = "Not connected, retrying in 3 s. This is the last state known.";
  const tooMany = (seconds) =>
    `Too many requests from your address, retrying in ${seconds} s. This is the last state known.`;
  const DELETED = "This was deleted. The page shows its last state.";

  const live = document.querySelector("[data-live]");
  const toggle = document.querySelector("[data-live-toggle]");
  const status = document.querySelector("[data-live-status]");
  const problem = document.querySelector("[data-live-problem]");
  const announcer = document.querySelector("[data-live-announcer]");
  if (!live || !toggle || !status || !problem || !announcer) return;

  const isMoving = () => live.dataset.moving === "yes";
  const isIdle = () => still >= STILL_POLLS && !isMoving();
  let paused = false;
  let lost = false;
  let limitedS = 0; // So long this address may ask for nothing.
  let gone = false; // What the page shows was deleted: it is not asked for again.
  let asks = 0;
  let acted = 0; // The ask that shows what a form did: an answer to an earlier one is too old.
  let pressed = false; // A button that is held down must not be swapped away.
  let still = 0;
  let timer = 0;
  let asking = null;
  let tag = ""; // Of the part that stands on the page.
  const told = window.updates.open(live, () => {
    still = 0;
    next();
  });
  told.isChanged = true;
  let askedAt = -Infinity;
  let isLooking = false;
  let paceMs = 0; // How soon the server wants to be asked again.

  const show = () => {
    const word = paused || isSelecting() ? "Paused"
      : gone ? "Deleted" : lost ? "Reconnecting" : isIdle() ? "Idle" : "Live";
    status.textContent = word;
    status.dataset.word = word;
    toggle.textContent = paused ? "Resume" : "Pause";
    live.classList.toggle("is-stale", (lost || gone) && !paused);
    document.documentElement.toggleAttribute("data-paused", paused);
    const text = paused ? "" : gone ? DELETED : !lost ? "" : limitedS ? tooMany(limitedS) : NOT_CONNECTED;
    if (problem.textContent !== text) {
      problem.textContent = text;
      if (text) announcer.textContent = text.split(/[.,]/)[0];
    }
    problem.hidden = !text;
  };

  // A text that is being selected must not be swapped away.
  const isSelecting = () => {
    const selection = document.getSelection();
    return !selection.isCollapsed && live.contains(selection.anchorNode);
  };
  const isInUse = () => pressed || isSelecting();

  // Puts a fresh part in place of an old one; what was open stays open, focus stays.
  const swap = (old, fresh) => {
    if (old.dataset.same !== undefined && old.dataset.same === fresh.dataset.same) return;
    if (old.isEqualNode(fresh)) return;
    const slider = old.querySelector("input[type=range]:focus");
    if (slider && pressed) return; // Its drag would end.
    for (const details of old.querySelectorAll("details[id]")) {
      const twin = fresh.querySelector("#" + CSS.escape(details.id));
      if (twin) twin.open = details.open;
    }
    for (const choice of old.querySelectorAll("select[id]")) {
      const twin = fresh.querySelector("#" + CSS.escape(choice.id));
      if (twin) twin.value = choice.value;
    }
    keepCanvases(old, fresh);
    // A slider that is in use is further on than what was asked for.
    const twin = slider && fresh.querySelector("#" + CSS.escape(slider.id));
    if (twin) twin.value = slider.value;
    const scrolled = [...old.querySelectorAll(".scroll")].map((box) => box.scrollTop);
    const top = old.scrollTop;
    const reachable = "a, button, select, summary, input:not([type=hidden]), [tabindex]";
    const focused = document.activeElement;
    const place = [...old.querySelectorAll(reachable)].indexOf(focused);
    const name = nameOf(focused);
    old.replaceWith(fresh);
    fresh.scrollTop = top;
    fresh.querySelectorAll(".scroll").forEach((box, i) => { box.scrollTop = scrolled[i] || 0; });
    if (focused === old) fresh.focus({ preventScroll: true });
    if (place < 0) return;
    const twins = [...fresh.querySelectorAll(reachable)];
    const next = twins.find((twin) => nameOf(twin) === name) || twins[Math.min(place, twins.length - 1)] || document.getElementById("now");
    if (next) next.focus({ preventScroll: true });
  };

  // What a control is called: the same word is the same control.
  const nameOf = (control) => `${control.tagName} ${control.textContent.trim()}`;

  // A canvas stays, and draws what the fresh one would.
  const keepCanvases = (old, fresh) => {
    const drawn = [...old.querySelectorAll("canvas[data-picture]")];
    fresh.querySelectorAll("canvas[data-picture]").forEach((twin, i) => {
      if (!drawn[i]) return;
      drawn[i].dataset.picture = twin.dataset.picture;
      drawn[i].setAttribute("aria-label", twin.getAttribute("aria-label"));
      twin.replaceWith(drawn[i]);
    });
  };

  const notices = () => live.querySelector("[data-part=notices]");

  // What an action said stays until the next one.
  const isOver = (fresh, isAction) =>
    fresh.dataset.part === "notices" && !fresh.children.length && !isAction;

  const take = (fresh, isAction) => {
    const changed = fresh.dataset.milestone !== live.dataset.milestone;
    for (const name of ["moving", "milestone", "say"]) live.dataset[name] = fresh.dataset[name];
    told.follow(fresh.dataset.updates);
    const parts = (of) => [...of.children].filter((part) => part.dataset.part);
    const names = (of) => parts(of).map((part) => part.dataset.part).join();
    if (names(live) === names(fresh)) {
      const newer = parts(fresh);
      parts(live).forEach((part, i) => { if (!isOver(newer[i], isAction)) swap(part, newer[i]); });
    } else {
      live.replaceChildren(...fresh.childNodes);
    }
    window.stage?.start(live);
    showWaited();
    const message = isAction ? notices()?.textContent.trim() : "";
    const text = message || (changed && live.dataset.say);
    if (text) announcer.textContent = text;
    return changed;
  };

  // The page at an address; null: it is as it was.
  const page = async (url, known = "") => {
    asking = new AbortController();
    limitedS = 0;
    const limit = setTimeout(() => asking.abort(), 10000);
    try {
      const headers = known ? { "If-None-Match": known } : {};
      const response = await fetch(url, { signal: asking.signal, headers, cache: "no-store" });
      gone = response.status === 404 || response.status === 410;
      if (response.status === 304) return null;
      if (response.status === 429) limitedS = Number(response.headers.get("Retry-After")) || 60;
      if (!response.ok) throw new Error(String(response.status));
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      fresh.tag = response.headers.get("ETag") || "";
      return fresh;
    } finally {
      clearTimeout(limit);
    }
  };

  // The address of the part, which says what of its picture is here already.
  const withHeld = (address) => {
    const held = window.stage?.heldBoxes() || "";
    if (!held) return address;
    return `${address}${address.includes("?") ? "&" : "?"}has=${encodeURIComponent(held)}`;
  };

  // Lists that are too long to ask for twice a second, once all has come to rest. The answer to a
  // form has the form's address, which may be none to ask for: the link that stands in has the page's.
  const refreshLists = async () => {
    const { pathname } = new URL(document.querySelector("[data-live-refresh]").href);
    const { search } = location;
    const fresh = await page(pathname + search);
    if (search !== location.search) return; // Another tab was opened meanwhile.
    for (const list of document.querySelectorAll("[data-when-still]")) {
      const twin = fresh.getElementById(list.id);
      if (twin && !list.contains(document.activeElement)) list.replaceWith(twin);
    }
  };

  // Whether the part has to be asked for.
  const hasNews = async () => {
    const untold = performance.now() - askedAt;
    const isUntold = untold > (isMoving() ? UNTOLD_MOVING_MS : UNTOLD_STILL_MS);
    if (!told.isThere || lost) return true;
    if (!told.isChanged && !told.isListening()) paceMs = await told.ask();
    return told.isChanged || isUntold;
  };

  const look = async () => {
    if (await hasNews()) return refresh();
    still += 1;
    return 0;
  };

  const refresh = async (isAction = false) => {
    const order = ++asks;
    if (isAction) acted = order;
    const wasMoving = isMoving();
    const asked = performance.now();
    askedAt = asked;
    told.isChanged = false;
    try {
      const answer = await page(withHeld(live.dataset.live), tag);
      const fresh = answer && answer.getElementById("live");
      if (answer && !fresh) throw new Error("no part to update");
      lost = false;
      if (!fresh) {
        still += 1;
      } else if (order >= acted && (isAction || (!paused && !isInUse()))) {
        const changed = take(fresh, isAction);
        tag = answer.tag;
        still = wasMoving || isMoving() || changed ? 0 : still + 1;
        if ((wasMoving || isAction) && !isMoving()) await refreshLists();
      }
    } catch {
      lost = !gone;
    }
    return performance.now() - asked;
  };

  const wait = (tookMs) => {
    if (lost) return limitedS ? limitedS * 1000 : LOST_MS;
    // What moves is asked for often, until nothing has changed for long: it may be parked.
    const doublings = isMoving() ? Math.max(0, still - STILL_POLLS) : still;
    // At rest a page that listens has nothing to look for until it hears of a change.
    const rests = told.isListening() && !isMoving();
    const rested = rests ? SLOW_MS : Math.min(SLOW_MS, FAST_MS * 2 ** doublings);
    const sinceAsked = performance.now() - askedAt;
    const due = told.isChanged && told.isListening()
      ? Math.max(0, FAST_MS - sinceAsked)
      : Math.max(rested, told.isListening() ? 0 : paceMs);
    // A server that needs long is asked less often.
    return isMoving() ? Math.max(due, 2 * tookMs) : due;
  };

  const next = (tookMs = 0) => {
    clearTimeout(timer);
    timer = 0;
    show();
    if (paused || gone || document.hidden || isIdle()) {
      told.hush();
      return;
    }
    told.listen();
    if (isLooking) return; // It goes on from there.
    timer = setTimeout(async () => {
      timer = 0;
      isLooking = true;
      const ms = await look().finally(() => { isLooking = false; });
      next(ms);
    }, wait(tookMs));
  };

  toggle.addEventListener("click", () => {
    paused = !paused;
    still = 0;
    next();
  });
  document.addEventListener("visibilitychange", () => {
    still = 0;
    gone = false;
    told.tryAgain();
    next();
  });
  let wasSelecting = false;
  document.addEventListener("selectionchange", () => {
    if (isSelecting() === wasSelecting) return;
    wasSelecting = !wasSelecting;
    if (!wasSelecting) told.isChanged = true; // What was told meanwhile is not on the page.
    next();
  });
  live.addEventListener("pointerdown", () => { pressed = true; });
  addEventListener("pointerup", () => setTimeout(() => { pressed = false; }, 0));
  addEventListener("pointercancel", () => { pressed = false; });
  // Where a menu opens with the press, no release is told of.
  addEventListener("contextmenu", () => { pressed = false; });

  toggle.hidden = false;
  status.hidden = false;
  document.querySelector("[data-live-refresh]").hidden = true;
  next();

  // How long a visitor waited for what they pressed, from the press to what the stage shows. Kept
  // for the run, in this window.
  function showWaited() {
    for (const place of live.querySelectorAll("[data-waited]")) {
      const text = kept(place.dataset.waited);
      if (!text) continue;
      place.textContent = text;
      place.parentNode.querySelector("[data-waited-label]").textContent = "you waited";
    }
  }

  function kept(run, text) {
    try {
      if (text) sessionStorage.setItem("waited", `${run} ${text}`);
      const [of, ...rest] = (sessionStorage.getItem("waited") || "").split(" ");
      return of === run ? rest.join(" ") : "";
    } catch {
      return "";
    }
  }

  // Another view of the same page, by its address: links and forms marked data-view. A slider
  // shows what it is moved to, while it is moved.
  const view = (url) => {
    const { pathname, searchParams } = new URL(url, location.href);
    const stop = new URLSearchParams(location.search).get("tour");
    if (stop) searchParams.set("tour", stop);
    const search = searchParams.size ? `?${searchParams}` : "";
    history.replaceState(null, "", pathname + search);
    live.dataset.live = live.dataset.live.split("?")[0] + search;
    tag = "";
    return window.live.refresh();
  };

  const addressOf = (form) => `${form.action.split("#")[0]}?${new URLSearchParams(new FormData(form))}`;

  let isSliding = false;
  const slide = async (event) => {
    if (isSliding || !event.target.closest("form[data-view]")) return;
    isSliding = true;
    for (let shown = "", wanted; ; shown = wanted) {
      wanted = addressOf(live.querySelector("form[data-view]"));
      if (wanted === shown) break;
      await view(wanted);
    }
    isSliding = false;
  };
  live.addEventListener("input", slide);
  live.addEventListener("change", (event) => setTimeout(() => slide(event), 0)); // After the drag.
  live.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-view]")) return;
    event.preventDefault();
    view(addressOf(event.target));
  });
  live.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-view]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    view(link.href);
  });

  window.live = {
    refresh: async () => {
      clearTimeout(timer);
      timer = 0;
      still = 0;
      await refresh(true);
      next();
    },
    // Shows a message as that of an action.
    say: (text) => {
      const message = document.createElement("p");
      message.className = "notice";
      message.textContent = text;
      notices()?.append(message);
      announcer.textContent = text;
    },
    waited: (ms) => {
      const place = live.querySelector("[data-waited]");
      if (!place) return;
      kept(place.dataset.waited, ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
      showWaited();
    },
  };
  showWaited();
})();
