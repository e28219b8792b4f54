"use strict";
// Text of the data reaches the page through textContent only.
const records = JSON.parse(document.getElementById("records").textContent);
const details = [...document.querySelectorAll("details[data-number]")];
const words = { "-1": "no such text", 0: "context", 1: "learned" };
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;

const escaped = (c) => {
  const code = c.codePointAt(0).toString(16);
  return code.length < 3 ? "\\x" + code.padStart(2, "0") : "\\u" + code.padStart(4, "0");
};
// A line break in a difference is a character that can be seen.
const shown = (text, differs) => {
  const visible = text.replace(hidden, escaped);
  return differs ? visible.replace(/\n/g, "\u21b5\n") : visible;
};

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function drawCell(cell, number, side, into) {
  const [begin, ids, texts] = cell[side];
  const label = cell[2 + side];
  const differs = cell[4].length > 0;
  if (differs && label < 0) {
    const gap = element("span", "\u2205", "gap");
    gap.dataset.cell = number;
    into.append(gap);
    return;
  }
  ids.forEach((id, i) => {
    const span = element("span", shown(texts[i], differs), "k" + label + ((begin + i) % 2 ? " odd" : "") + (differs ? " differs" : ""));
    span.dataset.cell = number;
    span.dataset.tip = "id " + id + "\nposition " + (begin + i);
    into.append(span);
  });
}

function drawAlone(alone, into) {
  const [[begin, ids, texts], learned] = alone;
  ids.forEach((id, i) => {
    const span = element("span", shown(texts[i], false), "k" + (learned[i] ? 1 : 0));
    span.dataset.tip = "id " + id + "\nposition " + (begin + i);
    into.append(span);
  });
}

function draw(detail) {
  const boxes = [...detail.querySelectorAll(".text")];
  const record = records[detail.dataset.number];
  if (boxes[0].childNodes.length || boxes[1].childNodes.length) return;
  boxes.forEach((box, side) => {
    const drawn = document.createDocumentFragment();
    record.cells.forEach((cell, number) => drawCell(cell, number, side, drawn));
    if (record.alone[side]) drawAlone(record.alone[side], drawn);
    if (!drawn.childNodes.length) drawn.append(element("span", "no row", "role"));
    box.append(drawn);
  });
}

function mark(detail, number) {
  for (const old of document.querySelectorAll(".found")) old.classList.remove("found");
  const found = [...detail.querySelectorAll(".column [data-cell='" + number + "']")];
  for (const span of found) span.classList.add("found");
  return found;
}

const tip = document.getElementById("tip");
function tipOf(span) {
  const record = records[span.closest("details").dataset.number];
  const lines = span.dataset.tip ? [span.dataset.tip] : [];
  const cell = span.dataset.cell === undefined ? null : record.cells[Number(span.dataset.cell)];
  if (cell) lines.push("left " + words[cell[2]], "right " + words[cell[3]], ...cell[4].filter(Boolean));
  return lines.join("\n");
}
document.addEventListener("mousemove", (event) => {
  const span = event.target.closest ? event.target.closest(".column span[data-tip], .column span.gap") : null;
  tip.hidden = !span;
  if (!span) return;
  tip.textContent = tipOf(span);
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = event.clientY + 18;
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : event.clientY - tip.offsetHeight - 10) + "px";
});

for (const detail of details) {
  detail.addEventListener("toggle", () => detail.open && draw(detail));
  for (const button of detail.querySelectorAll(".jump")) {
    button.addEventListener("click", () => {
      draw(detail);
      const found = mark(detail, button.dataset.cell);
      if (found.length) found[0].scrollIntoView({ block: "center", behavior: "smooth" });
    });
  }
}
const first = details.find((detail) => detail.querySelector(".different")) || details[0];
if (first) first.open = true;

const count = document.getElementById("count");
const said = count.textContent;
const haystacks = [];
function haystack(number) {
  if (haystacks[number] === undefined) {
    const record = records[number];
    const texts = record.cells.map((cell) => cell[cell[2] < 0 ? 1 : 0][2].join("")).join("");
    const alone = record.alone.map((each) => (each ? each[0][2].join("") : "")).join("");
    haystacks[number] = (details[number].textContent + texts + alone).toLowerCase();
  }
  return haystacks[number];
}
document.getElementById("search").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  let found = 0;
  details.forEach((detail, number) => {
    detail.hidden = wanted !== "" && !haystack(number).includes(wanted);
    found += !detail.hidden;
  });
  count.textContent = wanted ? found + " found" : said;
});
document.getElementById("all").addEventListener("click", (event) => {
  const opens = event.target.textContent === "open all";
  for (const detail of details) detail.open = opens && !detail.hidden;
  event.target.textContent = opens ? "close all" : "open all";
});
