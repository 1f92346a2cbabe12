// Sets the colour mode of Airflow's page, in whose frame this page stands. Outside of a frame, that of the system holds.
"use strict";
(() => {
  let root = null;
  try {
    root = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return; // the frame of another origin
  }
  if (root === null) return;
  const follow = () => {
    const mode = ["dark", "light"].find((name) => root.classList.contains(name));
    if (mode === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = mode;
  };
  follow();
  new MutationObserver(follow).observe(root, { attributeFilter: ["class"] });
})();
