// Small comforts of the console. Every page works without this file.

(() => {
  "use strict";

  const REFRESH_MS = 10000;

  function choosing(form) {
    const all = form.querySelector("[data-all]");
    const boxes = [...form.querySelectorAll("input.action-select")];
    const count = form.querySelector("[data-count]");
    const tell = () => {
      const chosen = boxes.filter((box) => box.checked).length;
      if (count) count.textContent = chosen ? `${chosen} chosen` : "";
      if (all) {
        all.checked = chosen > 0 && chosen === boxes.length;
        all.indeterminate = chosen > 0 && chosen < boxes.length;
      }
    };
    all?.addEventListener("change", () => {
      boxes.forEach((box) => { box.checked = all.checked; });
      tell();
    });
    boxes.forEach((box) => box.addEventListener("change", tell));
    tell();
  }

  function copying(element) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fp-copy";
    button.textContent = "Copy";
    const text = element.textContent;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(element);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    element.after(button);
  }

  function refreshing(panel) {
    const target = document.getElementById("fp-live");
    const age = panel.querySelector("[data-live-age]");
    const pause = panel.querySelector("[data-live-pause]");
    let isPaused = false;
    let last = Date.now();
    panel.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
      pause.querySelector(".fp-icon").textContent = isPaused ? "play_arrow" : "pause";
      pause.lastElementChild.textContent = isPaused ? "Go on" : "Pause";
    });
    target.addEventListener("htmx:afterSwap", () => { last = Date.now(); });
    age.textContent = "updated just now";
    setInterval(() => {
      const seconds = Math.round((Date.now() - last) / 1000);
      age.textContent = `updated ${seconds} s ago`;
      const isUsed = target.contains(document.activeElement);
      const isDue = Date.now() - last >= REFRESH_MS && seconds % 10 === 0;
      if (isDue && !isPaused && !isUsed && document.visibilityState === "visible") {
        window.htmx?.trigger(target, "fp:refresh");
      }
    }, 1000);
  }

  // The theme's own switches are plain boxes: make them reachable by keyboard.
  function reachable(element) {
    if (element.matches("button, input, select, textarea, a[href]") || element.tabIndex >= 0) return;
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    if (!element.textContent.trim() || element.classList.contains("material-symbols-outlined")) {
      element.setAttribute("aria-label", "Toggle menu");
    }
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        element.click();
      }
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("form[data-select]").forEach(choosing);
    document.querySelectorAll("[data-copy]").forEach(copying);
    document.querySelectorAll("[data-live]").forEach(refreshing);
    document.querySelectorAll("[x-on\\:click]").forEach(reachable);
  });
})();
