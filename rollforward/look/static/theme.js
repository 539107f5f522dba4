// Light or dark: the system's choice, until a visitor presses the button. Loaded before the
// page is drawn, so that it does not flash in the other colours.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  if (stored()) root.dataset.theme = stored();

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector("[data-theme-toggle]");
    if (!button) return;
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      // Back at what the system wants: follow it again.
      const follows = isDark() === system.matches;
      if (follows) delete root.dataset.theme;
      try {
        if (follows) localStorage.removeItem("theme");
        else localStorage.setItem("theme", root.dataset.theme);
      } catch { /* A private window: this page only. */ }
      name();
    });
    system.addEventListener("change", name);
    button.hidden = false;
    name();
  });
})();
// The menu of a phone scrolls: the current page is shown in the middle. Without this script it
// sticks to the edge that it lies beyond (app.css), over part of another link.
document.addEventListener("DOMContentLoaded", () => {
  const menu = document.querySelector(".menu");
  const here = menu?.querySelector("[aria-current]");
  if (!here) return;
  here.style.position = "static";
  const centre = () => {
    menu.scrollLeft = here.offsetLeft - menu.offsetLeft - (menu.clientWidth - here.offsetWidth) / 2;
  };
  new ResizeObserver(centre).observe(menu);
});
