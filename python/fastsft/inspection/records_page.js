"use strict";
// What both pages of records share. Text of the data reaches a page through textContent only. A page's own script comes after:
// it draws an opened record with draw(detail), and searchedText(record) is what the search box looks into.
const records = JSON.parse(document.getElementById("records").textContent);
const details = [...document.querySelectorAll("details[data-number]")];
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;

const escaped = (c) => {
  const code = c.codePointAt(0).toString(16);
  return code.length < 3 ? "\\x" + code.padStart(2, "0") : "\\u" + code.padStart(4, "0");
};
const visible = (text) => text.replace(hidden, escaped);

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Shows the box with these lines next to the pointer; hides it if there are none.
const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.hidden = text === null;
  if (tip.hidden) return;
  tip.textContent = text;
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  const below = event.clientY + 18;
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : event.clientY - tip.offsetHeight - 10) + "px";
}

for (const detail of details) detail.addEventListener("toggle", () => detail.open && draw(detail));

const count = document.getElementById("count");
const said = count.textContent;
const haystacks = [];
function haystack(number) {
  if (haystacks[number] === undefined) {
    haystacks[number] = (details[number].textContent + searchedText(records[number])).toLowerCase();
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
