// What the stage does by itself: forms that act in place, tabs that open in place, and the canvas
// on which a run is drawn. Without this script forms and tabs lead to pages, and a still picture
// stands in for the canvas.
"use strict";
(() => {
  const root = document.documentElement;

  // Forms marked data-in-place: sent without leaving the page. What they led to shows in the live
  // part; the keyboard stays where it was.
  const randomId = () => [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");

  const underWay = new Set();
  const send = async (form, button) => {
    const fields = new FormData(form, button);
    const began = performance.now();
    underWay.add(form);
    root.dataset.busy = "";
    try {
      // A redirect says that it was done. The worker that would have said so may be the one killed.
      const isPlain = form.enctype !== "multipart/form-data";
      const to = button?.hasAttribute("formaction") ? button.formAction : form.action;
      const response = await fetch(to, {
        method: "POST", redirect: "manual", body: isPlain ? new URLSearchParams(fields) : fields,
      }).catch(() => null);
      if (response && response.type !== "opaqueredirect" && !response.ok) {
        form.removeAttribute("data-in-place"); // Its page says what is wrong.
        form.requestSubmit(button);
        return;
      }
      for (const id of form.querySelectorAll("input[name=id]")) id.value = randomId();
      if (form.hasAttribute("data-clears")) form.reset();
      await window.live?.refresh();
      if (form.hasAttribute("data-timed")) window.live?.waited(performance.now() - began);
    } finally {
      underWay.delete(form);
      if (!underWay.size) delete root.dataset.busy;
    }
  };

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("[data-in-place]") || !window.live) return;
    event.preventDefault();
    if (!underWay.has(form)) send(form, event.submitter);
  });

  // Forms marked data-stay lead back to this page: to where it was scrolled to, as well.
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

  // Tabs.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-tab]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const old = document.getElementById("tabs");
    if (!old) return;
    event.preventDefault();
    try {
      const response = await fetch(link.href);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("tabs");
      if (!response.ok || !fresh) throw new Error(String(response.status));
      old.replaceWith(fresh);
      history.replaceState(null, "", link.href);
      fresh.querySelector("[data-tab][aria-current]")?.focus({ preventScroll: true });
    } catch {
      location.href = link.href;
    }
  });

  // The canvas: a box for each page, a dot for each item. A page that was struck has a broken,
  // hatched frame until all in it is done; then a whole one, and how often it was struck.
  const MAX_DOT = 9;
  const MAX_ASPECT = 2.2;
  const GLOW_MS = 450;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const unpack = (packed) => packed.replace(/(\d+)(.)/g, (_, n, letter) => letter.repeat(Number(n)));

  // All boxes in their places: what is read, then what is not, chain by chain.
  const arranged = (data, width, height) => {
    const chains = Array.from({ length: data.chains }, () => []);
    for (const [chain, number, packed, done] of data.boxes) {
      const hits = data.hits[`${chain}:${number}`] || 0;
      const key = `${chain}:${number}`;
      (chains[chain] ||= [])[number] = { key, letters: unpack(packed), done, hits };
    }
    let left = data.waiting;
    const size = Math.max(1, data.size);
    while (left > 0) {
      const shortest = chains.reduce((best, each) => (each.length < best.length ? each : best));
      shortest.push({ letters: ".".repeat(Math.min(size, left)), unread: true });
      left -= size;
    }
    const boxes = chains.flat();
    return grid(boxes, size, width, height);
  };

  // As many columns as make the dots largest.
  const grid = (boxes, size, width, height) => {
    let best = null;
    for (let columns = 1; columns <= Math.min(boxes.length, 60); columns += 1) {
      const rows = Math.ceil(boxes.length / columns);
      const cellW = width / columns;
      const cellH = height / rows;
      const gap = Math.max(2, Math.min(8, cellW * 0.09));
      const pad = Math.max(1, gap * 0.6);
      const roomX = cellW - gap - 2 * pad;
      const roomY = cellH - gap - 2 * pad;
      if (roomX < 1 || roomY < 1) continue;
      // Long, thin boxes hold larger dots, and look like stripes.
      const shape = Math.max(cellW / cellH, cellH / cellW) > MAX_ASPECT ? 0.5 : 1;
      for (let across = 1; across <= size; across += 1) {
        const down = Math.ceil(size / across);
        const pitch = Math.min(roomX / across, roomY / down, 3 * MAX_DOT);
        if (!best || pitch * shape > best.score) {
          const score = pitch * shape;
          best = { columns, cellW, cellH, gap, across, down, pitch, score };
        }
      }
    }
    return { boxes, ...best };
  };

  // The boxes that this page has been sent of a run, by their keys: what is asked for comes as
  // what has changed since.
  let held = { run: null, boxes: new Map() };
  const MAX_HELD_CHARS = 1500;

  // A picture, with the boxes that the server did not send again.
  const merged = (fresh) => {
    if (fresh.run !== held.run || !fresh.is_partial) held = { run: fresh.run, boxes: new Map() };
    for (const box of fresh.boxes) held.boxes.set(`${box[0]}:${box[1]}`, box);
    const boxes = [...held.boxes.values()];
    const known = boxes.reduce((sum, box) => sum + count(box[2]), 0);
    return { ...fresh, boxes, waiting: boxes.length ? Math.max(0, fresh.expected - known) : fresh.waiting };
  };

  const count = (packed) => (packed.match(/\d+/g) || []).reduce((sum, n) => sum + Number(n), 0);

  // The run and the boxes of it that change no more: "run!0:0-57,60;1:0-3".
  const heldBoxes = () => {
    const chains = new Map();
    for (const [chain, number, , done] of held.boxes.values()) {
      if (!chains.has(chain)) chains.set(chain, []);
      if (done) chains.get(chain).push(number);
    }
    if (!held.run || !chains.size) return "";
    let text = `${held.run}!`;
    for (const [chain, numbers] of chains) {
      const ranges = [];
      for (const number of numbers.sort((a, b) => a - b)) {
        const last = ranges.at(-1);
        if (last && last[1] === number - 1) last[1] = number;
        else ranges.push([number, number]);
      }
      const listed = ranges.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`));
      while (listed.length && text.length + listed.join().length > MAX_HELD_CHARS) listed.pop();
      if (listed.length) text += `${text.endsWith("!") ? "" : ";"}${chain}:${listed.join()}`;
    }
    return text.endsWith("!") ? "" : text;
  };

  const drawing = (canvas) => {
    let data = null;
    let known = new Map(); // The letters of each box as they were drawn last.
    let glow = new Map(); // Since when a dot is new.
    let frame = 0;

    const colours = () => {
      const style = getComputedStyle(canvas);
      const of = (name) => style.getPropertyValue(name).trim();
      const probe = document.createElement("span");
      canvas.parentNode.append(probe);
      const resolved = {};
      for (const name of ["done", "waiting", "retrying", "failed", "skipped", "surface", "line"]) {
        probe.style.color = `var(--${name})`;
        resolved[name] = getComputedStyle(probe).color || of(`--${name}`);
      }
      probe.remove();
      return resolved;
    };

    const paint = () => {
      frame = 0;
      const { clientWidth: width, clientHeight: height } = canvas;
      if (!canvas.isConnected) return;
      if (!data || width < 40 || height < 40) return;
      const scale = devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      const margin = 8;
      const plan = arranged(data, width - 2 * margin, height - 2 * margin);
      if (!plan.columns) return;
      pen.translate(margin, margin);
      const ink = colours();
      const now = performance.now();
      let isGlowing = false;
      plan.boxes.forEach((box, place) => {
        if (box) isGlowing = drawBox(pen, plan, box, place, ink, now) || isGlowing;
      });
      if (isGlowing) frame = requestAnimationFrame(paint);
    };

    const drawBox = (pen, plan, box, place, ink, now) => {
      const boxW = plan.cellW - plan.gap;
      const boxH = plan.cellH - plan.gap;
      const x = (place % plan.columns) * plan.cellW + plan.gap / 2;
      const y = Math.floor(place / plan.columns) * plan.cellH + plan.gap / 2;
      frameOf(pen, box, x, y, boxW, boxH, ink);
      const { pitch, across, down } = plan;
      const left = x + (boxW - across * pitch) / 2;
      const top = y + (boxH - down * pitch) / 2;
      const before = known.get(box.key) || "";
      let isGlowing = false;
      [...box.letters].forEach((letter, i) => {
        const cx = left + (i % across + 0.5) * pitch;
        const cy = top + (Math.floor(i / across) + 0.5) * pitch;
        const key = `${box.key} ${i}`;
        if (letter === "d" && before && before[i] !== "d" && !calm.matches) glow.set(key, now);
        const age = glow.has(key) ? (now - glow.get(key)) / GLOW_MS : 1;
        if (age >= 1) glow.delete(key);
        isGlowing ||= age < 1;
        dot(pen, letter, cx, cy, pitch, ink, age);
      });
      if (box.key) known.set(box.key, box.letters);
      return isGlowing;
    };

    const frameOf = (pen, box, x, y, w, h, ink) => {
      const round = Math.min(6, w / 6);
      pen.beginPath();
      pen.roundRect(x, y, w, h, round);
      if (!box.unread) { pen.fillStyle = ink.surface; pen.fill(); }
      pen.setLineDash(box.unread ? [3, 3] : box.hits && !box.done ? [5, 3] : []);
      pen.lineWidth = box.hits ? (box.done ? 1.5 : 2.5) : 1;
      pen.strokeStyle = box.hits ? ink.retrying : ink.line;
      if (box.hits && !box.done) {
        pen.save();
        pen.clip();
        pen.globalAlpha = 0.28;
        pen.strokeStyle = ink.retrying;
        pen.lineWidth = 3;
        pen.setLineDash([]);
        pen.beginPath();
        for (let at = -h; at < w; at += 9) { pen.moveTo(x + at, y + h); pen.lineTo(x + at + h, y); }
        pen.stroke();
        pen.restore();
        pen.beginPath();
        pen.roundRect(x, y, w, h, round);
        pen.setLineDash([5, 3]);
        pen.lineWidth = 2.5;
        pen.strokeStyle = ink.retrying;
      }
      pen.stroke();
      pen.setLineDash([]);
      if (!box.hits) return;
      // A badge on the corner: struck so often.
      const radius = Math.max(3, Math.min(8, w * 0.2, h * 0.2));
      pen.beginPath();
      pen.arc(x + w - 1, y + 1, radius, 0, 7);
      pen.fillStyle = ink.retrying;
      pen.fill();
      if (radius < 6 || box.hits < 2) return;
      pen.fillStyle = ink.surface;
      pen.font = `700 ${Math.round(radius * 1.5)}px system-ui, sans-serif`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(String(box.hits), x + w - 1, y + 1.5);
    };

    const dot = (pen, letter, x, y, pitch, ink, age) => {
      const full = Math.min(MAX_DOT, pitch * 0.4);
      pen.beginPath();
      if (letter === "d") {
        pen.fillStyle = ink.done;
        pen.arc(x, y, full * (1 + 0.9 * Math.max(0, 1 - age)), 0, 7);
        pen.fill();
      } else if (letter === ".") {
        pen.fillStyle = ink.waiting;
        pen.globalAlpha = 0.55;
        pen.arc(x, y, Math.max(0.6, full * 0.42), 0, 7);
        pen.fill();
        pen.globalAlpha = 1;
      } else {
        pen.lineWidth = Math.max(1, full * 0.4);
        pen.strokeStyle = letter === "r" ? ink.retrying : letter === "f" ? ink.failed : ink.skipped;
        if (letter === "r") pen.arc(x, y, full * 0.8, 0, 7);
        else if (letter === "s") { pen.moveTo(x - full * 0.8, y); pen.lineTo(x + full * 0.8, y); }
        else {
          const far = full * 0.8;
          pen.moveTo(x - far, y - far); pen.lineTo(x + far, y + far);
          pen.moveTo(x + far, y - far); pen.lineTo(x - far, y + far);
        }
        pen.stroke();
      }
    };

    const soon = () => { if (!frame) frame = requestAnimationFrame(paint); };
    const take = () => {
      const fresh = merged(JSON.parse(canvas.dataset.picture));
      if (data && fresh.run !== data.run) known = new Map();
      data = fresh;
      soon();
    };
    new ResizeObserver(soon).observe(canvas);
    new MutationObserver(take).observe(canvas, { attributeFilter: ["data-picture"] });
    new MutationObserver(soon).observe(root, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
    canvas.hidden = false;
    take();
  };

  const start = (within) => {
    for (const canvas of within.querySelectorAll("canvas[data-picture]:not([data-drawn])")) {
      canvas.dataset.drawn = "";
      drawing(canvas);
    }
  };
  window.stage = { start, heldBoxes };
  document.addEventListener("DOMContentLoaded", () => start(document));
})();
