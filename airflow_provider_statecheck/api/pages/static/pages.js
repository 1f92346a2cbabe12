// Links into Airflow, copying of pointers, relative times, and updates while an attempt runs.
"use strict";
(() => {
  const content = document.getElementById("content");
  const updates = document.getElementById("updates");
  const isFramed = window.parent !== window;

  // The frame may not navigate Airflow's page, but a link in that page may.
  const followInAirflow = (event, link) => {
    if (!isFramed) return;
    const anchor = window.parent.document.createElement("a");
    anchor.href = link.href;
    if (event.ctrlKey || event.metaKey || event.shiftKey) anchor.target = "_blank";
    event.preventDefault();
    window.parent.document.body.append(anchor);
    anchor.click();
    anchor.remove();
  };

  const copyBySelection = (text) => {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  };

  const copy = async (button) => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      copyBySelection(button.dataset.copy); // without TLS, or without the permission
      button.focus();
    }
    updates.textContent = "Copied.";
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    const button = event.target.closest("button[data-copy]");
    if (link !== null) followInAirflow(event, link);
    if (button !== null) copy(button);
  });

  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const relative = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const [unit, length] = units.find((each) => size >= each[1]);
    const text = `${Math.floor(size / length)} ${unit}`;
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  };
  const showAges = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const text = relative((Date.now() - new Date(time.dateTime)) / 1000);
      const shown = time.querySelector("[data-relative]");
      if (shown !== null && shown.textContent !== text) shown.textContent = text;
    }
  };

  // Airflow's page of a try names it in its address.
  const markTry = () => {
    let number = null;
    try {
      number = new URLSearchParams(window.parent.location.search).get("try_number");
    } catch {
      return null;
    }
    const row = number === null ? null : document.querySelector(`tr[data-try="${CSS.escape(number)}"]`);
    if (row !== null) {
      row.classList.add("current");
      row.setAttribute("aria-current", "true");
    }
    return row;
  };

  // Ages change with each reply, so they do not count as a change.
  const signature = (part) => {
    const copied = part.cloneNode(true);
    for (const age of copied.querySelectorAll("[data-relative]")) age.remove();
    return copied.innerHTML;
  };
  const known = new Map();
  const remember = () => {
    for (const part of content.querySelectorAll(".part")) known.set(part.id, signature(part));
  };

  const placeOf = (element) => {
    const part = element.closest?.(".part");
    if (!part) return null;
    const all = [...part.querySelectorAll("a, button, input, select")];
    return { part: part.id, index: all.indexOf(element) };
  };
  const focusAgain = (place) => {
    const part = place && document.getElementById(place.part);
    const element = part && part.querySelectorAll("a, button, input, select")[place.index];
    if (element && document.activeElement !== element) element.focus({ preventScroll: true });
  };

  const sameParts = (next) => {
    const ids = (root) => [...root.querySelectorAll(".part")].map((part) => part.id).join(" ");
    return ids(content) === ids(next);
  };
  const replaceChanged = (next) => {
    for (const part of next.querySelectorAll(".part")) {
      if (known.get(part.id) === signature(part)) continue;
      const open = [...document.querySelectorAll(`#${CSS.escape(part.id)} details[open]`)].map((each) => each.id);
      for (const details of part.querySelectorAll("details")) details.open ||= open.includes(details.id);
      document.getElementById(part.id).replaceWith(part);
    }
  };
  const show = (page) => {
    const next = page.getElementById("content");
    const heading = document.querySelector("h1");
    if (heading.innerHTML !== page.querySelector("h1").innerHTML) heading.replaceWith(page.querySelector("h1"));
    const place = placeOf(document.activeElement);
    const { scrollX, scrollY } = window;
    if (sameParts(next)) replaceChanged(next);
    else content.replaceChildren(...next.childNodes);
    content.dataset.refreshSeconds = next.dataset.refreshSeconds ?? "";
    remember();
    showAges();
    markTry();
    focusAgain(place);
    window.scrollTo(scrollX, scrollY);
  };

  let failures = 0;
  const update = async () => {
    const reply = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (reply.status >= 400 && reply.status < 500) {
      const isRemoved = reply.status === 404 && content.querySelector("[data-removing]") !== null;
      updates.textContent = isRemoved
        ? "The page of this job is gone: the job was removed as requested, or you may no longer read it."
        : "This page is no longer available to you. Reload it.";
      content.dataset.refreshSeconds = "";
      return;
    }
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    show(new DOMParser().parseFromString(await reply.text(), "text/html"));
    if (failures > 0) updates.textContent = "";
    failures = 0;
  };
  const poll = async () => {
    if (!document.hidden) {
      try {
        await update();
      } catch {
        failures += 1;
        updates.textContent = "The page could not be updated; it will be tried again.";
      }
    }
    schedule();
  };
  const schedule = () => {
    const seconds = Number(content.dataset.refreshSeconds ?? "");
    if (seconds > 0) setTimeout(poll, seconds * 1000 * Math.min(2 ** failures, 12));
  };

  // A request of the user shows at once, and may start the updates of an idle page.
  document.addEventListener("statecheck:requested", async (event) => {
    const isIdle = !(Number(content.dataset.refreshSeconds ?? "") > 0);
    try {
      await update();
      updates.textContent = event.detail;
    } catch {
      updates.textContent = "The page could not be updated. Reload it.";
    }
    if (isIdle) schedule();
  });

  remember();
  showAges();
  markTry()?.scrollIntoView({ block: "center" });
  setInterval(showAges, 10000);
  schedule();
})();
