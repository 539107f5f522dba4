// Buttons that copy the text of an element.
"use strict";
(() => {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("[data-copy]")) {
    const said = button.parentElement.querySelector("[data-copied]");
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = "Copied.";
      } catch {
        said.textContent = "The browser does not allow it: select the text below.";
      }
    });
  }
})();
