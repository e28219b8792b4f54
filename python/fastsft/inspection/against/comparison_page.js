"use strict";
const words = { "-1": "no such text", 0: "context", 1: "learned" };

// A line break in a difference is a character that can be seen.
const shown = (text, differs) => (differs ? visible(text).replace(/\n/g, "\u21b5\n") : visible(text));

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
    const span = element("span", visible(texts[i]), "k" + (learned[i] ? 1 : 0));
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

function tipOf(span) {
  const record = records[span.closest("details").dataset.number];
  const lines = span.dataset.tip ? [span.dataset.tip] : [];
  const cell = span.dataset.cell === undefined ? null : record.cells[Number(span.dataset.cell)];
  if (cell) lines.push("left " + words[cell[2]], "right " + words[cell[3]], ...cell[4].filter(Boolean));
  return lines.join("\n");
}
document.addEventListener("mousemove", (event) => {
  const span = event.target.closest ? event.target.closest(".column span[data-tip], .column span.gap") : null;
  showTip(event, span && tipOf(span));
});

for (const detail of details) {
  for (const button of detail.querySelectorAll(".jump")) {
    button.addEventListener("click", () => {
      draw(detail);
      const found = mark(detail, button.dataset.cell);
      if (found.length) found[0].scrollIntoView({ block: "center", behavior: "smooth" });
    });
  }
}

function searchedText(record) {
  const texts = record.cells.map((cell) => cell[cell[2] < 0 ? 1 : 0][2].join("")).join("");
  return texts + record.alone.map((each) => (each ? each[0][2].join("") : "")).join("");
}

const first = details.find((detail) => detail.querySelector(".different")) || details[0];
if (first) first.open = true;
