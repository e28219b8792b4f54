"use strict";
// Text of the data reaches the page through textContent only.
const records = JSON.parse(document.getElementById("records").textContent);
const details = [...document.querySelectorAll("details[data-number]")];
const names = ["context", "learned", "learned, end of a turn"];
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/gu;

const escaped = (c) => {
  const code = c.codePointAt(0).toString(16);
  return code.length < 3 ? "\\x" + code.padStart(2, "0") : "\\u" + code.padStart(4, "0");
};
const shown = (text) => text.replace(hidden, escaped);

function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// A token: its text, or [its bytes in hex, what is shown].
const textOf = (token) => shown(typeof token === "string" ? token : token[1]);

function bytesOf(token) {
  if (typeof token !== "string") return token[0].replace(/(..)(?=.)/g, "$1 ") || "none";
  return [...new TextEncoder().encode(token)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function draw(detail) {
  const box = detail.querySelector(".text");
  const record = records[detail.dataset.number];
  if (box.childNodes.length) return;
  const drawn = document.createDocumentFragment();
  record.texts.forEach((token, i) => {
    const text = textOf(token);
    const control = typeof token === "string" ? (text === token ? "" : " control") : token[0] ? "" : " bare";
    const span = element("span", text, "k" + record.kinds[i] + (i % 2 ? " odd" : "") + control);
    span.dataset.at = i;
    drawn.append(span);
  });
  if (record.num_cut) {
    drawn.append(element("span", shown(record.cut), "cut"));
    drawn.append(element("div", record.num_cut + " tokens beyond the limit are cut", "role"));
  }
  for (const [role, text] of record.messages) {
    drawn.append(element("div", shown(role) || "(no role)", "role"), element("div", shown(text)));
  }
  box.append(drawn);
}

function tipOf(record, i) {
  const bytes = bytesOf(record.texts[i]);
  const from = bytes === "none" ? "" : "\nfrom byte " + record.at[i];
  return "id " + record.ids[i] + "\nposition " + i + "\nlabel " + names[record.kinds[i]] + "\nbytes " + bytes + from;
}

const tip = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const at = event.target.dataset && event.target.dataset.at;
  tip.hidden = at === undefined;
  if (tip.hidden) return;
  tip.textContent = tipOf(records[event.target.closest("details").dataset.number], Number(at));
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  const below = event.clientY + 18;
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : event.clientY - tip.offsetHeight - 10) + "px";
});

for (const detail of details) detail.addEventListener("toggle", () => detail.open && draw(detail));
if (details.length) details[0].open = true;

const count = document.getElementById("count");
const said = count.textContent;
const haystacks = [];
function haystack(number) {
  if (haystacks[number] === undefined) {
    const record = records[number];
    const texts = record.texts.map((token) => (typeof token === "string" ? token : token[0] ? token[1] : "")).join("") + record.cut;
    const other = record.messages.map((message) => message[1]).join("\n");
    haystacks[number] = (details[number].textContent + texts + other).toLowerCase();
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
