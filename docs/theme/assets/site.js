// A table that is wider than a phone scrolls in a frame of the theme: let the keyboard into it.
const openFrames = () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
  }
};
addEventListener("load", openFrames);
addEventListener("resize", openFrames);
