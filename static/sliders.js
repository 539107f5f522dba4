// Shows the number that a slider stands at, beside its label.
"use strict";
for (const output of document.querySelectorAll("output[data-of]")) {
  const slider = document.getElementById(output.dataset.of);
  if (!slider) continue;
  const show = () => { output.textContent = slider.value; };
  slider.addEventListener("input", show);
  addEventListener("pageshow", show);
}
