// Preview of an action in a dialog, its confirmation, and the request to the server.
"use strict";
(() => {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "action-title");
  document.body.append(dialog);

  const load = async (link) => {
    const reply = await fetch(link.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const confirmation = page.getElementById("action");
    if (confirmation === null) throw new Error(`status ${reply.status}`);
    return confirmation;
  };

  const open = async (link) => {
    try {
      dialog.replaceChildren(await load(link));
      dialog.showModal();
    } catch {
      location.assign(link.href); // the page says what is wrong
    }
  };

  const textOf = async (reply) => {
    try {
      return (await reply.json()).message;
    } catch {
      return `The server answered with status ${reply.status}.`;
    }
  };

  const paramsOf = (field) => {
    const params = JSON.parse(field.value);
    if (params === null || typeof params !== "object" || Array.isArray(params)) throw new Error("it is no object");
    return params;
  };

  const messageOf = (button) => {
    const field = button.closest(".confirmation").querySelector("textarea.params");
    const message = JSON.parse(button.dataset.message);
    if (field !== null) message.params = paramsOf(field);
    return JSON.stringify(message);
  };

  const send = (button, message) =>
    fetch(button.dataset.confirm, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Statecheck-Action": button.dataset.action },
      body: message,
    });

  const finish = (button, accepted) => {
    if (!dialog.open) {
      location.assign(button.dataset.back);
      return;
    }
    dialog.close();
    const told = [accepted.status, accepted.message].filter(Boolean).join(", ");
    document.dispatchEvent(new CustomEvent("statecheck:requested", { detail: `Request ${told}.` }));
  };

  const confirm = async (button) => {
    const outcome = button.closest(".confirmation").querySelector(".outcome");
    let message;
    try {
      message = messageOf(button);
    } catch (error) {
      outcome.textContent = `Expected the params as a JSON object, found other text (${error.message}); correct it.`;
      return;
    }
    button.disabled = true;
    outcome.textContent = "Sending …";
    try {
      const reply = await send(button, message);
      if (reply.ok) finish(button, await reply.json());
      else outcome.textContent = await textOf(reply);
    } catch {
      outcome.textContent = "The request may not have arrived. Confirm again; it is carried out once.";
    }
    button.disabled = false;
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-preview]");
    const button = event.target.closest("button[data-confirm]");
    const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
    if (link !== null && isPlain) {
      event.preventDefault();
      open(link);
    }
    if (button !== null) confirm(button);
    if (event.target.closest("a[data-cancel]") !== null && dialog.open) {
      event.preventDefault();
      dialog.close();
    }
  });
})();
