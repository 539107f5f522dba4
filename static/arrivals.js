// Says how many comments were written since a post was opened, and shows them when asked: below
// all that is there, so that the text being read stays where it is. Without this script: a link.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const SLOWEST_MS = 60000;

  const bar = document.querySelector("[data-arrivals]");
  const place = document.querySelector("[data-arrived]");
  const link = document.querySelector("[data-arrivals-link]");
  if (!bar || !place || !link) return;
  const count = bar.querySelector("[data-arrivals-count]");

  let found = null;
  let shown = 0;
  let pause = EVERY_MS;
  let timer = 0;

  const look = async () => {
    const response = await fetch(bar.dataset.arrivals);
    if (!response.ok) throw new Error(String(response.status));
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    found = page.getElementById("new-comments");
    const all = found ? found.querySelectorAll(".comment").length : 0;
    const more = all - shown;
    if (more > 0) {
      const text = more === 1 ? "1 new comment" : `${more} new comments`;
      if (count.textContent !== text) count.textContent = text;
    }
    bar.hidden = more <= 0;
    pause = more > 0 ? EVERY_MS : Math.min(SLOWEST_MS, pause * 1.3);
  };

  const next = () => {
    clearTimeout(timer);
    if (document.hidden) return;
    timer = setTimeout(async () => {
      try {
        await look();
      } catch {
        pause = SLOWEST_MS;
      }
      next();
    }, pause);
  };

  bar.querySelector("[data-arrivals-show]").addEventListener("click", () => {
    if (!found) return;
    shown = found.querySelectorAll(".comment").length;
    place.replaceChildren(...found.childNodes);
    place.hidden = false;
    bar.hidden = true;
    place.focus();
  });
  document.addEventListener("visibilitychange", () => {
    pause = EVERY_MS;
    next();
  });
  link.hidden = true;
  next();
})();
