"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // What a part of a chart is: beside the pointer, or beside the part that keys have reached.
  const show = (words, x, y) => {
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 8) : y + 16}px`;
  };
  let isHeld = false; // by keys: it stays while the page scrolls to its part
  const hide = () => { tip.hidden = true; };
  document.addEventListener("pointermove", (event) => {
    const part = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (part) show(part.getAttribute("data-tip"), event.clientX, event.clientY);
    else if (!isHeld) hide();
  });
  document.addEventListener("scroll", () => { if (!isHeld) hide(); }, { passive: true });

  for (const walk of all(".walk")) {
    let on = null;
    const leave = () => { if (on) on.classList.remove("on"); on = null; isHeld = false; hide(); };
    walk.addEventListener("blur", leave);
    walk.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!step) return;
      event.preventDefault();
      const parts = all("[data-tip]", walk);
      if (!parts.length) return;
      const at = on ? parts.indexOf(on) + step : step > 0 ? 0 : parts.length - 1;
      leave();
      on = parts[Math.max(0, Math.min(at, parts.length - 1))];
      on.classList.add("on");
      on.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
      isHeld = true;
      const box = on.getBoundingClientRect();
      show(on.getAttribute("data-tip"), box.left + box.width / 2, box.bottom - 8);
    });
  }

  // Tables are sorted by the number behind a cell, or by its words.
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : typeof a === "number" ? -1 : typeof b === "number" ? 1 : a.localeCompare(b, "en", { numeric: true });
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = Array.from(table.tBodies[0].rows);
        const sign = up ? 1 : -1;
        rows.sort((a, b) => sign * compare(value(a, column), value(b, column)));
        table.tBodies[0].append(...rows);
      });
    });
  }

  // Films: each cell has [first frame, who, percent, first frame, who, percent, ...].
  for (const film of all(".film")) {
    const data = JSON.parse(film.querySelector("script").textContent);
    const slider = film.querySelector("input");
    const play = film.querySelector(".play");
    const told = film.querySelector(".told");
    const cells = all(".cell", film).map((cell) => ({
      back: cell.firstElementChild, fill: cell.lastElementChild,
      top: Number(cell.firstElementChild.getAttribute("y")), size: Number(cell.firstElementChild.getAttribute("height")),
    }));
    const nows = all(".now");
    const state = (runs, frame) => {
      let low = 0;
      let high = runs.length / 3 - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (runs[3 * middle] <= frame) low = middle; else high = middle - 1;
      }
      return [runs[3 * low + 1], runs[3 * low + 2]];
    };
    const draw = () => {
      const frame = Number(slider.value);
      cells.forEach((cell, i) => {
        const [who, percent] = state(data.cells[i], frame);
        const [name, fill] = who >= 0 ? data.who[who] : data.states[-1 - who];
        const size = who >= 0 ? Math.max(cell.size * percent / 100, 1) : cell.size;
        cell.fill.setAttribute("class", fill);
        cell.fill.setAttribute("y", cell.top + cell.size - size);
        cell.fill.setAttribute("height", size);
        const part = who >= 0 && percent < 100 ? `, ${percent} %` : "";
        cell.back.parentNode.setAttribute("data-tip", `${data.places[i]}\n${name}${part}`);
      });
      told.textContent = data.told[frame];
      slider.setAttribute("aria-valuetext", data.told[frame]);
      for (const now of nows) {
        const x = Number(now.dataset.left) + data.at[frame] * Number(now.dataset.width);
        now.setAttribute("x1", x);
        now.setAttribute("x2", x);
      }
    };
    slider.addEventListener("input", draw);
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; play.setAttribute("aria-pressed", "false"); play.textContent = "▶"; };
    play.addEventListener("click", () => {
      if (timer) { stop(); return; }
      if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
      play.setAttribute("aria-pressed", "true");
      play.textContent = "❚❚";
      timer = setInterval(() => {
        if (Number(slider.value) >= Number(slider.max)) { stop(); return; }
        slider.value = Number(slider.value) + 1;
        draw();
      }, 150);
    });
    draw();
  }

  // On paper nothing stays shut.
  let shut = [];
  addEventListener("beforeprint", () => {
    shut = all("details:not([open])");
    for (const each of shut) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of shut) each.open = false; });

  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of all("main > section")) if (links.has(section.id)) seen.observe(section);
})();
