// What the stage does by itself: forms that act in place, and tabs that open in place. Without
// this script they lead to pages.
"use strict";
(() => {
  const root = document.documentElement;

  // Forms marked data-in-place: sent without leaving the page. What they led to shows in the live
  // part; the keyboard stays where it was.
  const randomId = () => [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");

  const NO_RESPONSE = "There was no response. Press again: what has been done is not done twice.";
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
      // Without a response the next press is the same request once more, which is done once.
      const ids = form.querySelectorAll("input[name=id]");
      if (response) for (const id of ids) id.value = randomId();
      await window.live?.refresh();
      if (!response && ids.length) window.live?.say(NO_RESPONSE);
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

  // Tabs. The one that was pressed last is shown, in whichever order the answers come.
  let presses = 0;
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-tab]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    const old = document.getElementById("tabs");
    if (!old) return;
    event.preventDefault();
    presses += 1;
    const press = presses;
    try {
      const response = await fetch(link.href);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("tabs");
      if (press !== presses) return;
      if (!response.ok || !fresh) throw new Error(String(response.status));
      old.replaceWith(fresh);
      history.replaceState(null, "", link.href);
      fresh.querySelector("[data-tab][aria-current]")?.focus({ preventScroll: true });
    } catch {
      if (press === presses) location.href = link.href;
    }
  });
})();
