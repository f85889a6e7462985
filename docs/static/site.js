/* A box that scrolls sideways must be within reach of the keyboard, and must have a name. */
function makeScrollingBoxesReachable() {
  const kinds = [[".table-wrapper", "Table"], [".highlight pre", "Code"], [".formula", "Formula"], [".sig", "Signature"]];
  for (const [selector, name] of kinds) {
    for (const box of document.querySelectorAll(selector)) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", name);
      }
    }
  }
}
addEventListener("DOMContentLoaded", makeScrollingBoxesReachable);
addEventListener("resize", makeScrollingBoxesReachable);
