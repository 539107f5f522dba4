// Keys of the console: / searches, ? lists the keys, g and a letter opens a page, j and k walk
// through a list, Enter opens its row. Off in fields, with a modifier, and by choice in the help.
"use strict";
(() => {
  const help = document.getElementById("keys");
  const button = document.querySelector("[data-keys-help]");
  if (!help || !button || !help.showModal) return;
  const choice = help.querySelector("[data-keys-on]");
  const SEARCH = "form[role=search] input[type=search], form[role=search] input:not([type=hidden])";
  const ROWS = "main table tbody tr, main .attention li, main .waterfall > li";
  const FIELDS = "input, select, textarea, [contenteditable]";
  const PREFIX_MS = 1500;
  let wentAt = -Infinity;

  const stored = () => {
    try { return localStorage.getItem("keys"); } catch { return null; }
  };
  const isOn = () => stored() !== "off";
  const show = () => {
    choice.checked = isOn();
    help.showModal();
  };

  const walk = (step) => {
    const links = [...document.querySelectorAll(ROWS)]
      .map((row) => row.querySelector("th a, summary, a")).filter(Boolean);
    if (!links.length) return;
    const row = document.activeElement.closest("tr, li");
    const at = links.findIndex((link) => row && row.contains(link));
    const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step;
    links[Math.min(Math.max(next, 0), links.length - 1)].focus();
  };

  const open = (letter) => {
    const link = document.querySelector(`.rail a[data-go="${CSS.escape(letter)}"]`);
    if (link) link.click();
    return Boolean(link);
  };

  const search = () => {
    const field = document.querySelector(SEARCH);
    if (!field) return false;
    field.focus();
    field.select();
    return true;
  };

  const press = (key, at) => {
    const isSecond = at - wentAt < PREFIX_MS;
    wentAt = -Infinity;
    if (isSecond) return open(key);
    if (key === "g") wentAt = at;
    else if (key === "/") return search();
    else if (key === "?") show();
    else if (key === "j") walk(1);
    else if (key === "k") walk(-1);
    else return false;
    return true;
  };

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!isOn() || help.open || event.target.closest(FIELDS) || event.key.length !== 1) return;
    if (press(event.key, event.timeStamp)) event.preventDefault();
  });
  choice.addEventListener("change", () => {
    try { localStorage.setItem("keys", choice.checked ? "on" : "off"); } catch { /* This page. */ }
  });
  button.addEventListener("click", show);
  button.hidden = false;
})();
