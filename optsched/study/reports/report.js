"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // The tooltip of a chart part is shown next to the pointer, or next to the part selected by keys.
  const show = (words, x, y) => {
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 8) : y + 16}px`;
  };
  let isHeld = false; // shown by keys: the tooltip stays while the page scrolls to its part
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

  // Tables are sorted by the number in data-key, or by the text of a cell without it.
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

  // Sliders: each cell has a list of changes, [first frame, who, percent, who, percent, ...].
  const drawn = (name, attributes) => {
    const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const pen = document.createElement("canvas").getContext("2d");
  const width = (words) => { pen.font = `600 11px ${getComputedStyle(document.body).fontFamily}`; return pen.measureText(words).width; };
  const short = (name, most) => {
    const head = Math.floor((most - 1) / 2);
    return `${name.slice(0, head).join("")}…${name.slice(name.length - (most - 1 - head)).join("")}`;
  };
  const fitted = (name, number, room) => {
    if (width(name) <= room - 6) return name;
    const letters = Array.from(name);
    // Shortened names with equal ends look the same, so the number distinguishes them.
    for (let most = Math.min(letters.length - 1, 80); most >= 8; most--) {
      const words = `${number} ${short(letters, most)}`;
      if (width(words) <= room - 6) return words;
    }
    const words = number ? String(number) : "";
    return width(words) <= room - 2 ? words : "";
  };
  for (const film of all(".film")) {
    const data = JSON.parse(film.querySelector("script").textContent);
    const slider = film.querySelector("input");
    const play = film.querySelector(".play");
    const caption = film.querySelector(".instant");
    const names = film.querySelector(".names");
    const cells = all(".cell", film).map((cell) => {
      const back = cell.firstElementChild;
      const [x, y, wide, tall] = ["x", "y", "width", "height"].map((key) => Number(back.getAttribute(key)));
      return { cell, back, x, y, wide, tall, now: null };
    });
    const nows = all(".now");
    const state = (changes, frame) => {
      let low = 0;
      let high = changes.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (changes[middle][0] <= frame) low = middle; else high = middle - 1;
      }
      return changes[low];
    };
    const holder = (who) => who >= 0 ? data.who[who] : data.states[-1 - who];
    const segments = (box, now) => {
      const found = [];
      let used = 0;
      for (let i = 1; i < now.length; i += 2) {
        const part = now[i] >= 0 || now[i] === -3 ? Math.min(now[i + 1], 100 - used) : 100;
        found.push({ who: now[i], percent: now[i + 1], x: box.x + box.wide * used / 100, wide: Math.max(box.wide * part / 100, 1) });
        used = Math.min(used + now[i + 1], 100);
      }
      return found;
    };
    const fill = (box, i) => {
      const parts = segments(box, box.now);
      const rects = parts.filter((part) => part.who !== -1).map((part) =>
        drawn("rect", { x: part.x, y: box.y, width: part.wide, height: box.tall, class: holder(part.who)[1], rx: 2 }));
      box.cell.replaceChildren(box.back, ...rects);
      const lines = parts.map((part) => holder(part.who)[0] + (part.who >= 0 && part.percent < 100 ? `, ${part.percent} %` : ""));
      box.cell.setAttribute("data-tip", [data.places[i], ...lines].join("\n"));
    };
    const isWhole = (now) => now.length === 3 && now[1] >= 0 && now[2] >= 100;
    const isSame = (a, b) => a.length === b.length && a.every((n, i) => i === 0 || n === b[i]);
    const put = (who, x, wide, box) => {
      if (who < 0) return;
      const words = fitted(data.who[who][2], data.who[who][3], wide);
      if (!words) return;
      const text = drawn("text", { x: x + wide / 2, y: box.y + box.tall / 2 + 4, "text-anchor": "middle", class: "cellname" });
      text.textContent = words;
      names.append(text);
    };
    const label = () => {
      names.replaceChildren();
      let first = 0;
      for (const number of data.rows) {
        for (let at = first; at < first + number;) {
          let run = at + 1;
          while (isWhole(cells[at].now) && run < first + number && isSame(cells[run].now, cells[at].now)) run++;
          const [box, last] = [cells[at], cells[run - 1]];
          if (run > at + 1) put(box.now[1], box.x, last.x + last.wide - box.x, box);
          else for (const part of segments(box, box.now)) put(part.who, part.x, part.wide, box);
          at = run;
        }
        first += number;
      }
    };
    const draw = () => {
      const frame = Number(slider.value);
      let isNew = false;
      cells.forEach((box, i) => {
        const now = state(data.cells[i], frame);
        if (now === box.now) return;
        box.now = now;
        isNew = true;
        fill(box, i);
      });
      if (isNew) label();
      caption.textContent = data.captions[frame];
      slider.setAttribute("aria-valuetext", data.captions[frame]);
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

  // Open all collapsed details for printing.
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
