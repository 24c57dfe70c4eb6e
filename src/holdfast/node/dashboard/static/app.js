// What makes pages of the dashboard live. Every page works without it.
"use strict";
(() => {
  const page = document.documentElement;
  const all = (what, from = document) => from.querySelectorAll(what);
  const one = (what, from = document) => from.querySelector(what);

  // -- the server's clock: what ages are reckoned from ---------------------------------------------------------------

  let serverNow = Number(page.dataset.now) || 0;
  let heardAt = performance.now();
  const now = () => serverNow + (performance.now() - heardAt) / 1000;

  const span = (seconds) => {
    const s = Math.max(0, seconds);
    if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
    if (s < 3600) return `${Math.round(s / 60)} min`;
    if (s < 86400) return `${(s / 3600).toFixed(s < 36000 ? 1 : 0)} h`;
    return `${Math.round(s / 86400)} d`;
  };
  const ago = (seconds) => (seconds < 1.5 ? "just now" : `${span(Math.floor(seconds))} ago`.replace(".0 s", " s"));
  const write = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const tick = () => {
    if (!serverNow) return;
    for (const time of all("time[data-at]")) write(time, ago(now() - Number(time.dataset.at)));
    for (const left of all("[data-left]")) {
      if (!left.ends || left.from !== left.dataset.left) {
        left.from = left.dataset.left;
        left.ends = now() + Number(left.from);
      }
      write(left, span(left.ends - now()));
    }
  };

  // -- parts that changed -----------------------------------------------------------------------------------------------

  // Makes `old` like `fresh`, keeping what is the same: scroll positions, focus, selections and open dialogs stay.
  const morph = (old, fresh) => {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType === Node.ELEMENT_NODE && old.matches(".tip")) return; // the script's own
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    children(old, fresh);
  };
  const children = (old, fresh) => {
    if (old.matches("[data-at], [data-left]")) return; // the script's own text
    const kept = [...old.childNodes];
    const wanted = [...fresh.childNodes];
    wanted.forEach((child, at) => (at < kept.length ? morph(kept[at], child) : old.append(child)));
    kept.slice(wanted.length).forEach((child) => child.remove());
  };
  const parsed = (html) => {
    const box = document.createElement("template");
    box.innerHTML = html;
    return box.content;
  };
  const patch = ({ now: time, parts }) => {
    if (time) [serverNow, heardAt] = [time, performance.now()];
    for (const [name, html] of Object.entries(parts)) {
      const region = one(`[data-live="${name}"]`);
      if (region) children(region, parsed(html));
    }
    ready();
    tick();
  };
  const MOST_ROWS = 500;
  const add = ({ html }) => {
    const list = one("[data-feed]");
    if (!list) return;
    const box = list.parentElement;
    const below = box.scrollHeight - box.scrollTop - box.clientHeight < 40; // the reader follows, and has not scrolled up
    list.append(parsed(html));
    while (list.children.length > MOST_ROWS) list.firstElementChild.remove();
    if (below) box.scrollTop = box.scrollHeight;
    tick();
  };

  // -- the connection ---------------------------------------------------------------------------------------------------

  const LIVE = { live: "Live", lost: "Connection lost, trying again", paused: "Paused", trouble: "The server does not answer" };
  const status = one("[data-status]");
  const say = (state, detail = "") => {
    if (!status) return;
    status.hidden = false;
    status.dataset.status = state;
    status.title = detail;
    write(one("[data-status-text]"), LIVE[state]);
  };
  let source = null;
  let paused = false;
  let again = 0;
  let lastRow = one("[data-feed]")?.dataset.feed ?? "";
  const close = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const open = () => {
    clearTimeout(again);
    if (source || paused || document.hidden || !page.hasAttribute("data-live-page")) return;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("live", "1");
    if (lastRow) address.searchParams.set("after", lastRow);
    source = new EventSource(address);
    source.addEventListener("patch", (event) => {
      say("live");
      patch(JSON.parse(event.data));
    });
    source.addEventListener("add", (event) => {
      lastRow = event.lastEventId || lastRow;
      add(JSON.parse(event.data));
    });
    source.addEventListener("again", () => {
      close();
      open();
    });
    source.addEventListener("trouble", (event) => say("trouble", JSON.parse(event.data).detail));
    source.addEventListener("error", () => {
      say("lost");
      if (source?.readyState === EventSource.CLOSED) {
        close(); // refused: the browser gives up, we do not
        again = setTimeout(open, 5000);
        // Whoever is not known any more is led to where one signs in.
        const asked = { headers: { Accept: "text/html" }, redirect: "manual" };
        fetch(location.href, asked).then((page) => page.type === "opaqueredirect" && location.reload(), () => {});
      }
    });
  };
  const pause = () => {
    paused = !paused;
    if (paused) {
      close();
      say("paused");
    } else open();
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  addEventListener("online", open);

  // -- charts: the value under the pointer ------------------------------------------------------------------------------

  const UNITS = { s: (v) => (v < 1 ? `${+(v * 1000).toPrecision(3)} ms` : span(v)), "": (v) => String(v), "/s": (v) => `${+v.toPrecision(3)}/s` };
  const guide = (plot, x) => ["x1", "x2"].forEach((side) => one(".guide", plot)?.setAttribute(side, x));
  document.addEventListener("pointermove", (event) => {
    const chart = event.target.closest?.(".plot")?.querySelector(".chart");
    for (const tip of all(".tip:not([hidden])")) {
      if (tip.parentElement === chart?.parentElement) continue;
      tip.hidden = true;
      guide(tip.parentElement, -9);
    }
    if (!chart) return;
    const box = chart.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const lines = chart.dataset.lines.split(";").map((line) => line.split("="));
    const count = lines[0][1].split(",").length;
    const at = Math.round(share * (count - 1));
    const values = lines.map(([name, list]) => [name, list.split(",")[at]]).filter(([, value]) => value !== "");
    const time = new Date((Number(chart.dataset.start) + at * Number(chart.dataset.step)) * 1000);
    const tip = one(".tip", chart.parentElement);
    const shown = values.map(([name, value]) => `${lines.length > 1 ? `${name} ` : ""}${UNITS[chart.dataset.unit](Number(value))}`);
    tip.hidden = false;
    write(tip, `${time.toISOString().slice(11, 19)}  ${shown.join("  ") || "nothing"}`);
    tip.classList.toggle("left", share > 0.5);
    guide(chart.parentElement, (at / Math.max(1, count - 1)) * chart.viewBox.baseVal.width);
  });

  // -- actions: the form of the next page, as a dialog ------------------------------------------------------------------

  const dialog = one("#ask");
  const askFor = async (link) => {
    const address = new URL(link.href);
    address.searchParams.set("dialog", "1");
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    dialog.replaceChildren(parsed(await answer.text()));
    dialog.showModal();
    one("input", dialog)?.focus();
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-dialog]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      askFor(link).catch(() => location.assign(link.href));
    }
    if (event.target.closest?.("[data-close]") && dialog.open) {
      event.preventDefault();
      dialog.close();
    }
    const copy = event.target.closest?.("[data-copy]");
    if (copy) {
      navigator.clipboard?.writeText(one("code", copy.parentElement).textContent).then(
        () => write(copy, "Copied"),
        () => write(copy, "Press Ctrl-C"),
      );
    }
    if (event.target.closest?.("[data-keys]")) one("#keys").showModal();
    if (event.target.closest?.("[data-theme-toggle]")) nextTheme();
  });
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault(); // twice is once
    if (event.target.method === "post") event.target.dataset.sent = "1";
  });
  addEventListener("pageshow", () => all("form[data-sent]").forEach((form) => delete form.dataset.sent));

  // -- light and dark ---------------------------------------------------------------------------------------------------

  const THEMES = ["system", "light", "dark"];
  const showTheme = () => write(one("[data-theme-name]"), page.dataset.theme ?? "system");
  const nextTheme = () => {
    const theme = THEMES[(THEMES.indexOf(page.dataset.theme ?? "system") + 1) % THEMES.length];
    if (theme === "system") delete page.dataset.theme;
    else page.dataset.theme = theme;
    try {
      if (theme === "system") localStorage.removeItem("holdfast-theme");
      else localStorage.setItem("holdfast-theme", theme);
    } catch {
      // It holds for this page then.
    }
    showTheme();
  };

  // -- keys ---------------------------------------------------------------------------------------------------------------

  let went = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]")) return;
    if (went && performance.now() - went < 1500) {
      went = 0;
      const link = one(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const known = {
      g: () => (went = performance.now()),
      "/": () => one("[data-search]")?.focus(),
      "?": () => one("#keys").showModal(),
      d: nextTheme,
      p: pause,
    }[event.key];
    if (known) {
      event.preventDefault();
      known();
    }
  });

  // -- to begin with ------------------------------------------------------------------------------------------------------

  const ready = () => {
    for (const hidden of all("[data-copy][hidden]")) hidden.hidden = !navigator.clipboard;
  };
  for (const button of all("[data-theme-toggle], [data-keys]")) button.hidden = false;
  showTheme();
  ready();
  tick();
  setInterval(tick, 1000);
  const feed = one("[data-feed]");
  if (feed) feed.parentElement.scrollTop = feed.parentElement.scrollHeight;
  open();
})();
