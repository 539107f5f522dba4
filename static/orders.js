// The cards of orders, for the keyboard: one card can be reached by Tab, the arrows go on from there.
// Without this script each card is a link that Tab reaches.
(() => {
  let at = "";
  const cards = () => [...document.querySelectorAll("[data-order]")];

  const arrange = () => {
    const all = cards();
    const current = all.find((card) => card.dataset.order === at) || all[0];
    for (const card of all) {
      const index = card === current ? "0" : "-1";
      if (card.getAttribute("tabindex") !== index) card.setAttribute("tabindex", index);
    }
  };

  document.addEventListener("focusin", (event) => {
    const card = event.target.closest?.("[data-order]");
    if (!card || card.dataset.order === at) return;
    at = card.dataset.order;
    arrange();
  });
  document.addEventListener("keydown", (event) => {
    const card = event.target.closest?.("[data-order]");
    if (!card) return;
    const all = cards();
    const place = all.indexOf(card);
    const places = { ArrowLeft: place - 1, ArrowUp: place - 1, ArrowRight: place + 1, ArrowDown: place + 1, Home: 0, End: all.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    all[places[event.key]]?.focus();
  });
  // Parts of the page are replaced by fresh ones, whose cards have to be arranged anew.
  const stage = document.querySelector(".stage-show");
  if (stage) new MutationObserver(arrange).observe(stage, { childList: true, subtree: true });
  arrange();
})();
