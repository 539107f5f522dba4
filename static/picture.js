// The canvas on which a run is drawn: a box for each page, a dot for each item. A page that was
// struck has a broken, hatched frame until all in it is done; then a whole one, and how often it
// was struck. Without this script a still picture stands in for it.
//
// It is drawn in slices, one a frame, and only boxes that differ are drawn again, so that a page
// with ten thousand dots answers as fast as one with ten. What has to be drawn whole, as in a
// window of another size, is drawn out of sight first.
"use strict";
(() => {
  const root = document.documentElement;
  const MAX_DOT = 9;
  const MAX_ASPECT = 2.2;
  const GLOW_MS = 450;
  const ROUND = 2 * Math.PI;
  // A slice ends with the box in which it has drawn so many dots, or taken so long.
  const SLICE_DOTS = 1000;
  const SLICE_MS = 8;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = { slices: 0, dots: 0, mostDots: 0, mostMs: 0 };

  const unpack = (packed) => packed.replace(/(\d+)(.)/g, (_, n, letter) => letter.repeat(Number(n)));
  const count = (packed) => (packed.match(/\d+/g) || []).reduce((sum, n) => sum + Number(n), 0);

  // All boxes in their order: what is read, then what is not, chain by chain.
  const arranged = (data) => {
    const chains = Array.from({ length: data.chains }, () => []);
    for (const [chain, number, packed, done] of data.boxes) {
      const key = `${chain}:${number}`;
      const hits = data.hits[key] || 0;
      const look = `${key} ${packed} ${done} ${hits}`;
      (chains[chain] ||= [])[number] = { key, packed, done, hits, look };
    }
    const size = Math.max(1, data.size);
    for (let left = data.waiting; left > 0; left -= size) {
      const shortest = chains.reduce((best, each) => (each.length < best.length ? each : best));
      const packed = `${Math.min(size, left)}.`;
      shortest.push({ packed, hits: 0, unread: true, look: `unread ${packed}` });
    }
    return chains.flat();
  };

  // As many columns as make the dots largest.
  const grid = (boxes, size, width, height) => {
    let best = null;
    for (let columns = 1; columns <= Math.min(boxes, 60); columns += 1) {
      const rows = Math.ceil(boxes / columns);
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
    return best;
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

  // Drawing a box

  const frameOf = (pen, box, place, ink) => {
    const { x, y, w, h } = place;
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
      pen.lineWidth = 3;
      pen.setLineDash([]);
      pen.beginPath();
      for (let at = -h; at < w; at += 9) { pen.moveTo(x + at, y + h); pen.lineTo(x + at + h, y); }
      pen.stroke();
      pen.restore();
      pen.beginPath();
      pen.roundRect(x, y, w, h, round);
    }
    pen.stroke();
    pen.setLineDash([]);
  };

  // A badge on the corner, inside the box's cell: struck so often.
  const badgeOf = (pen, box, place, ink) => {
    const { x, y, w, h, gap } = place;
    const radius = Math.max(3, Math.min(8, w * 0.2, h * 0.2));
    const badgeX = Math.min(x + w - 1, x + w + gap / 2 - radius);
    const badgeY = Math.max(y + 1, y - gap / 2 + radius);
    pen.beginPath();
    pen.arc(badgeX, badgeY, radius, 0, ROUND);
    pen.fillStyle = ink.retrying;
    pen.fill();
    if (radius < 6 || box.hits < 2) return;
    pen.fillStyle = ink.surface;
    pen.font = `700 ${Math.round(radius * 1.5)}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(String(box.hits), badgeX, badgeY + 0.5);
  };

  const circle = (pen, x, y, radius) => {
    pen.moveTo(x + radius, y);
    pen.arc(x, y, radius, 0, ROUND);
  };

  // How each letter is drawn: its colour, whether it is filled, and its shape.
  const SHAPES = {
    d: ["done", true, (pen, x, y, full, grown) => circle(pen, x, y, full * grown)],
    ".": ["waiting", true, (pen, x, y, full) => circle(pen, x, y, Math.max(0.6, full * 0.42))],
    r: ["retrying", false, (pen, x, y, full) => circle(pen, x, y, full * 0.8)],
    s: ["skipped", false, (pen, x, y, full) => {
      pen.moveTo(x - full * 0.8, y);
      pen.lineTo(x + full * 0.8, y);
    }],
    f: ["failed", false, (pen, x, y, full) => {
      const far = full * 0.8;
      pen.moveTo(x - far, y - far);
      pen.lineTo(x + far, y + far);
      pen.moveTo(x + far, y - far);
      pen.lineTo(x - far, y + far);
    }],
  };

  // The dots of one letter are one path: a call of its own for each would take most of the time.
  const dotsOf = (pen, letters, place, plan, ink, grownOf) => {
    const { pitch, across, down } = plan;
    const full = Math.min(MAX_DOT, pitch * 0.4);
    const left = place.x + (place.w - across * pitch) / 2;
    const top = place.y + (place.h - down * pitch) / 2;
    for (const letter of new Set(letters)) {
      const [colour, isFilled, shape] = SHAPES[letter] || SHAPES.f;
      pen.beginPath();
      for (let i = letters.indexOf(letter); i >= 0; i = letters.indexOf(letter, i + 1)) {
        const x = left + (i % across + 0.5) * pitch;
        const y = top + (Math.floor(i / across) + 0.5) * pitch;
        shape(pen, x, y, full, letter === "d" ? grownOf(i) : 1);
      }
      pen.globalAlpha = letter === "." ? 0.55 : 1;
      pen.lineWidth = Math.max(1, full * 0.4);
      if (isFilled) { pen.fillStyle = ink[colour]; pen.fill(); }
      else { pen.strokeStyle = ink[colour]; pen.stroke(); }
    }
    pen.globalAlpha = 1;
  };

  const colours = (canvas) => {
    const probe = document.createElement("span");
    canvas.parentNode.append(probe);
    const resolved = {};
    for (const name of ["done", "waiting", "retrying", "failed", "skipped", "surface", "line"]) {
      probe.style.color = `var(--${name})`;
      resolved[name] = getComputedStyle(probe).color;
    }
    probe.remove();
    return resolved;
  };

  const drawing = (canvas) => {
    const margin = 8;
    let size = { width: 0, height: 0 };
    let ink = null;
    let data = null;
    let boxes = [];
    let plan = null;
    let shape = ""; // Of what is drawn: another one has to be drawn whole.
    let layer = null; // Where it is drawn out of sight, until it is whole.
    let looks = []; // Of the boxes as they are drawn, by place.
    let letters = new Map(); // Of each box that has been read, as it was sent last.
    let glow = new Map(); // Since when the new dots of a box are new, by the box's key.
    let todo = new Set(); // The places that have to be drawn.
    let frame = 0;

    const pageOf = () => {
      const page = layer || canvas;
      return page.getContext("2d");
    };

    const begin = () => {
      const scale = devicePixelRatio || 1;
      const { width, height } = size;
      ink ||= colours(canvas);
      const wanted = [width, height, scale, boxes.length, data.size, ...Object.values(ink)].join();
      if (wanted === shape) return;
      shape = wanted;
      plan = grid(boxes.length, Math.max(1, data.size), width - 2 * margin, height - 2 * margin);
      layer = document.createElement("canvas");
      layer.width = Math.round(width * scale);
      layer.height = Math.round(height * scale);
      const pen = layer.getContext("2d");
      pen.scale(scale, scale);
      pen.translate(margin, margin);
      looks = [];
      todo = new Set();
    };

    const finish = () => {
      canvas.width = layer.width;
      canvas.height = layer.height;
      const pen = canvas.getContext("2d");
      pen.drawImage(layer, 0, 0);
      pen.setTransform(layer.getContext("2d").getTransform());
      layer = null;
    };

    // Draws the box at a place; returns how many dots it has.
    const drawBox = (pen, at, now) => {
      const box = boxes[at];
      const x = (at % plan.columns) * plan.cellW;
      const y = Math.floor(at / plan.columns) * plan.cellH;
      const { cellW, cellH, gap } = plan;
      const place = { x: x + gap / 2, y: y + gap / 2, w: cellW - gap, h: cellH - gap, gap };
      pen.clearRect(x, y, cellW, cellH);
      looks[at] = box?.look;
      if (!box) return 0;
      const fresh = glow.get(box.key);
      const grownOf = (i) => {
        const age = fresh?.has(i) ? (now - fresh.get(i)) / GLOW_MS : 1;
        if (age >= 1) fresh?.delete(i);
        return 1 + 0.9 * Math.max(0, 1 - age);
      };
      const text = letters.get(box.key) || unpack(box.packed);
      frameOf(pen, box, place, ink);
      dotsOf(pen, text, place, plan, ink, grownOf);
      if (box.hits) badgeOf(pen, box, place, ink);
      if (fresh && !fresh.size) glow.delete(box.key);
      return text.length;
    };

    const slice = () => {
      frame = 0;
      if (!canvas.isConnected) return end();
      if (!data || size.width < 40 || size.height < 40) return;
      const began = performance.now();
      begin();
      if (!plan) return;
      boxes.forEach((box, at) => { if (looks[at] !== box?.look) todo.add(at); });
      if (!todo.size && glow.size) boxes.forEach((box, at) => { if (glow.has(box?.key)) todo.add(at); });
      const pen = pageOf();
      let dots = 0;
      for (const at of todo) {
        if (dots >= SLICE_DOTS || performance.now() - began > SLICE_MS) break;
        todo.delete(at);
        dots += drawBox(pen, at, began);
      }
      if (!todo.size && layer) finish();
      drawn.slices += 1;
      drawn.dots += dots;
      drawn.mostDots = Math.max(drawn.mostDots, dots);
      drawn.mostMs = Math.max(drawn.mostMs, performance.now() - began);
      if (todo.size || glow.size) soon();
    };

    const soon = () => { frame ||= requestAnimationFrame(slice); };

    const take = () => {
      const fresh = merged(JSON.parse(canvas.dataset.picture));
      if (fresh.run !== data?.run) [letters, glow] = [new Map(), new Map()];
      data = fresh;
      boxes = arranged(data);
      const now = performance.now();
      for (const box of boxes) if (box?.key) light(box, now);
      soon();
    };

    // Keeps the letters of a box, and lets those glow that have become done.
    const light = (box, now) => {
      const before = letters.get(box.key);
      const after = unpack(box.packed);
      if (before === after) return;
      letters.set(box.key, after);
      if (!before || calm.matches) return;
      const fresh = glow.get(box.key) || new Map();
      for (let i = 0; i < after.length; i += 1) {
        if (after[i] === "d" && before[i] !== "d") fresh.set(i, now);
      }
      if (fresh.size) glow.set(box.key, fresh);
    };

    const inTheme = () => { ink = null; soon(); };
    const resized = new ResizeObserver(([entry]) => { size = entry.contentRect; soon(); });
    const pictures = new MutationObserver(take);
    const themes = new MutationObserver(inTheme);
    const end = () => {
      for (const observer of [resized, pictures, themes]) observer.disconnect();
      dark.removeEventListener("change", inTheme);
    };
    resized.observe(canvas);
    pictures.observe(canvas, { attributeFilter: ["data-picture"] });
    themes.observe(root, { attributeFilter: ["data-theme"] });
    dark.addEventListener("change", inTheme);
    canvas.hidden = false;
    take();
  };

  const start = (within) => {
    for (const canvas of within.querySelectorAll("canvas[data-picture]:not([data-drawn])")) {
      canvas.dataset.drawn = "";
      drawing(canvas);
    }
  };
  window.stage = { start, heldBoxes, drawn };
  document.addEventListener("DOMContentLoaded", () => start(document));
})();
