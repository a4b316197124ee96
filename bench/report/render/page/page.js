"use strict";

// Tables: a header's button sorts by its column, up, down, and back to the order of the report.

const bytesOf = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }; // one column may hold all of them
const numberOf = (text) => Number.parseFloat(text.replaceAll(",", "").replace(/^\D*?(?=-?\d)/, "")) * (bytesOf[text.split(" ").at(-1)] ?? 1);
const words = new Intl.Collator("en", { numeric: true });

function compare(one, other, isNumber, sign) {
  if (!isNumber) return sign * words.compare(one, other);
  const [a, b] = [numberOf(one), numberOf(other)];
  // What is unknown comes last, whichever way the rest is sorted.
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return sign * (a - b);
}

for (const table of document.querySelectorAll("table:has([aria-sort])")) {
  const body = table.tBodies[0];
  const asReported = [...body.rows];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[header.ariaSort];
      for (const each of headers) each.ariaSort = "none";
      header.ariaSort = next;
      const sign = next === "descending" ? -1 : 1;
      const isNumber = header.classList.contains("number");
      const text = (row) => row.cells[column].textContent;
      const sorted = asReported.toSorted((a, b) => compare(text(a), text(b), isNumber, sign));
      body.append(...(next === "none" ? asReported : sorted));
    });
  });
}

// Filters: one for each setting that differs between the rows of a table.

for (const table of document.querySelectorAll("table:has([data-axes])")) {
  const rows = [...table.tBodies[0].rows];
  const axesOf = new Map(rows.map((row) => [row, JSON.parse(row.dataset.axes)]));
  const filters = document.createElement("div");
  filters.className = "filters";
  for (const axis of Object.keys(axesOf.get(rows[0]))) {
    const values = [...new Set(rows.map((row) => axesOf.get(row)[axis]))];
    if (values.length < 2 || values.length === rows.length) continue;
    const label = filters.appendChild(document.createElement("label"));
    const select = document.createElement("select");
    select.name = axis;
    select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
    label.append(`${axis} `, select);
  }
  filters.addEventListener("change", () => {
    const wanted = [...filters.querySelectorAll("select")].filter((select) => select.value);
    for (const row of rows) {
      row.hidden = wanted.some((select) => axesOf.get(row)[select.name] !== select.value);
    }
  });
  if (filters.children.length) table.parentElement.before(filters);
}

// A link into a folded part opens it, in browsers that do not do so themselves.

function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", unfold);
unfold();

// Copying: the table of the settings as Markdown, for a pull request, and each command.

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not every browser lets a file on a disk use the clipboard that way.
    const held = document.body.appendChild(document.createElement("textarea"));
    held.value = text;
    held.select();
    document.execCommand("copy");
    held.remove();
  }
}

function offer(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = label;
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function markdownOf(table) {
  const cell = (each) => {
    const text = each.textContent.trim().replaceAll("|", "\\|");
    return each.querySelector("strong") && text ? `**${text}**` : text;
  };
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const headers = [...table.tHead.rows[0].cells];
  const rule = headers.map((header) => (header.classList.contains("number") ? "---:" : "---"));
  return [line(headers.map(cell)), line(rule), ...[...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => line([...row.cells].map(cell)))].join("\n");
}

for (const scroll of document.querySelectorAll(".first .scroll")) {
  scroll.after(offer("Copy as Markdown", () => markdownOf(scroll.querySelector("table"))));
}

for (const code of document.querySelectorAll(".first code")) {
  if (code.textContent.startsWith("bench ")) code.after(offer("copy", () => code.textContent));
}

// Charts: a legend's button hides a series; a mark says what it is to a pointer, and to the arrow keys.

const tip = document.getElementById("tip");

let shown = null;

function show(mark) {
  shown?.classList.remove("shown");
  shown = mark;
  tip.hidden = !mark;
  if (!mark) return;
  mark.classList.add("shown");
  tip.textContent = mark.dataset.words;
  const at = mark.getBoundingClientRect();
  const left = at.left + at.width / 2 - tip.offsetWidth / 2;
  tip.style.left = `${Math.max(8, Math.min(left, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  const above = at.top - tip.offsetHeight - 8;
  tip.style.top = `${above > 0 ? above : at.bottom + 8}px`;
}

for (const mark of document.querySelectorAll("figure [data-series]:has(title)")) {
  // Without this script the browser shows the title by itself; with both there would be two.
  mark.dataset.words = mark.querySelector("title").textContent;
  mark.querySelector("title").remove();
  mark.addEventListener("pointerenter", () => show(mark));
  mark.addEventListener("pointerleave", () => shown === mark && show(null));
}

for (const drawing of document.querySelectorAll(".drawing")) {
  let current = -1;
  drawing.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return show(null);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const marks = [...drawing.querySelectorAll("[data-words]:not(.off)")];
    if (!step || !marks.length) return;
    event.preventDefault();
    current = current < 0 && step < 0 ? marks.length - 1 : (current + step + marks.length) % marks.length;
    marks[current].scrollIntoView({ block: "nearest" });
    show(marks[current]);
  });
  drawing.addEventListener("blur", () => show(null));
}

for (const figure of document.querySelectorAll("figure")) {
  for (const button of figure.querySelectorAll("[data-toggles]")) {
    button.addEventListener("click", () => {
      const isOn = button.ariaPressed !== "true";
      button.ariaPressed = String(isOn);
      for (const mark of figure.querySelectorAll(`[data-series="${button.dataset.toggles}"]`)) {
        mark.classList.toggle("off", !isOn);
      }
    });
  }
}

addEventListener("scroll", () => show(shown), { passive: true });
