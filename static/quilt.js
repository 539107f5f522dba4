// Paints the squares of a quilt as their tasks commit, plays a finished one again, and lets the
// arrow keys go from square to square. Without this script the page shows the quilt as it was
// when it was asked for, and the table has what is said here of each square.
"use strict";
(() => {
  const live = document.getElementById("live");
  const detail = document.querySelector("[data-square-detail]");
  if (!live || !detail) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const PLAYED_MS = 6000; // However long it took.
  const FRAME_MS = 40;
  let state = null; // What the server said last.
  let shown = Infinity; // Which moment is played, in ms; Infinity: all that there is.
  let timer = 0;
  let at = 0; // The square that the keyboard is on.

  const squares = () => [...live.querySelectorAll("[data-square]")];
  const time = (ms) => (ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`);

  const labelOf = (square, painted, hit) => {
    const columns = Math.sqrt(squares().length);
    const number = Number(square.dataset.square);
    const place = `Row ${Math.floor(number / columns) + 1}, column ${(number % columns) + 1}`;
    const hits = hit ? `, hit by ${hit[0]} ${hit[0] === 1 ? "fault" : "faults"}` : "";
    if (!painted) return `${place}: ${hit && hit[1] ? "tried again" : "not painted yet"}${hits}`;
    const [after, took, worker, deliveries] = painted;
    const again = deliveries > 1 ? `, ${deliveries} deliveries` : "";
    return `${place}: ${square.dataset.colour}, painted after ${time(after)} by worker ${worker} in ${time(took)}${again}${hits}`;
  };

  const draw = () => {
    const isAll = shown === Infinity;
    squares().forEach((square) => {
      const painted = state.squares[square.dataset.square] || null;
      const hit = state.hits[square.dataset.square];
      const isPainted = Boolean(painted) && painted[0] <= shown;
      square.classList.toggle("is-painted", isPainted);
      square.classList.toggle("is-open", !isPainted && isAll && Boolean(hit && hit[1]));
      square.classList.toggle("was-hit", isPainted && Boolean(hit || painted[3] > 1));
      square.setAttribute("aria-label", labelOf(square, isPainted ? painted : null, hit));
    });
    const frame = live.querySelector(".quilt-frame");
    if (state.finished && frame) {
      frame.removeAttribute("aria-busy");
      frame.querySelector("[data-spinner]")?.remove();
    }
    const output = live.querySelector("output[for=moment]");
    const range = live.querySelector("#moment");
    if (output && range) {
      const until = isAll ? Number(range.max) : shown;
      const count = state.squares.filter((square) => square && square[0] <= until).length;
      output.textContent = `${time(Math.round(until))}: ${count} painted`;
    }
  };

  // The grid, for the keyboard: one square at a time can be reached, the arrows go on from there.
  const makeGrid = () => {
    const svg = live.querySelector("svg.quilt");
    if (!svg || svg.getAttribute("role") === "grid") return;
    svg.setAttribute("role", "grid");
    svg.setAttribute("aria-label", "The squares");
    for (const row of svg.children) if (row.tagName === "g") row.setAttribute("role", "row");
    squares().forEach((square, i) => {
      square.setAttribute("role", "gridcell");
      square.setAttribute("tabindex", i === at ? "0" : "-1");
    });
    detail.hidden = false;
  };

  // What a square is, and its task, with a link to where it can be looked at.
  const say = (square) => {
    detail.textContent = square.getAttribute("aria-label");
    const task = square.classList.contains("is-painted") && state.squares[square.dataset.square]?.[4];
    if (!task) return;
    const name = document.createElement(detail.dataset.tasks ? "a" : "code");
    name.textContent = `task ${task.slice(0, 10)}${detail.dataset.tasks ? " ↗" : ""}`;
    if (detail.dataset.tasks) name.href = detail.dataset.tasks + task;
    detail.append(". ", name);
  };

  const go = (to) => {
    const all = squares();
    if (!all[to]) return;
    all[at]?.setAttribute("tabindex", "-1");
    at = to;
    all[at].setAttribute("tabindex", "0");
    all[at].focus();
  };

  live.addEventListener("keydown", (event) => {
    if (!event.target.closest?.("[data-square]")) return;
    const columns = Math.sqrt(squares().length);
    const row = Math.floor(at / columns);
    const steps = {
      ArrowLeft: at % columns ? at - 1 : at,
      ArrowRight: at % columns < columns - 1 ? at + 1 : at,
      ArrowUp: at - columns,
      ArrowDown: at + columns,
      Home: event.ctrlKey ? 0 : row * columns,
      End: event.ctrlKey ? columns * columns - 1 : row * columns + columns - 1,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    go(steps[event.key]);
  });
  live.addEventListener("focusin", (event) => {
    const square = event.target.closest?.("[data-square]");
    if (square) say(square);
  });
  live.addEventListener("click", (event) => {
    const square = event.target.closest?.("[data-square]");
    if (square) go(squares().indexOf(square));
    if (event.target.closest?.("[data-play]")) play();
  });
  live.addEventListener("input", (event) => {
    if (event.target.id !== "moment") return;
    stop();
    show(Number(event.target.value), Number(event.target.max));
  });

  const show = (ms, end) => {
    shown = ms >= end ? Infinity : ms;
    draw();
  };

  const stop = () => {
    clearTimeout(timer);
    timer = 0;
    const button = live.querySelector("[data-play]");
    if (button) button.textContent = "Play";
  };

  const play = () => {
    const range = live.querySelector("#moment");
    if (timer) { stop(); return; }
    const end = Number(range.max);
    const began = performance.now();
    const from = Number(range.value) >= end ? 0 : Number(range.value);
    const speed = end / PLAYED_MS;
    live.querySelector("[data-play]").textContent = "Stop";
    // Who wants no motion gets a few still pictures.
    const every = calm.matches ? 1000 : FRAME_MS;
    const step = () => {
      const now = Math.min(end, from + (performance.now() - began) * speed);
      range.value = String(now);
      show(now, end);
      if (now >= end) { stop(); return; }
      timer = setTimeout(step, every);
    };
    timer = setTimeout(step, 0);
  };

  const take = () => {
    const text = live.querySelector("[data-squares]")?.dataset.squares;
    if (!text) return;
    state = JSON.parse(text);
    makeGrid();
    const replay = live.querySelector("[data-replay]");
    if (replay) replay.hidden = false;
    draw();
  };

  new MutationObserver((changes) => {
    // What this script writes itself is inside the squares.
    if (changes.some((change) => change.target === live)) take();
  }).observe(live, { childList: true });
  take();
})();
