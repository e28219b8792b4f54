"use strict";
const names = ["context", "learned", "learned, end of a turn"];

// A token: its text, or [its bytes in hex, what is shown].
const textOf = (token) => visible(typeof token === "string" ? token : token[1]);

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
    drawn.append(element("span", visible(record.cut), "cut"));
    drawn.append(element("div", record.num_cut + " tokens beyond the limit are cut", "role"));
  }
  for (const [role, text] of record.messages) {
    drawn.append(element("div", visible(role) || "(no role)", "role"), element("div", visible(text)));
  }
  box.append(drawn);
}

function tipOf(record, i) {
  const bytes = bytesOf(record.texts[i]);
  const from = bytes === "none" ? "" : "\nfrom byte " + record.at[i];
  return "id " + record.ids[i] + "\nposition " + i + "\nlabel " + names[record.kinds[i]] + "\nbytes " + bytes + from;
}

document.addEventListener("mousemove", (event) => {
  const at = event.target.dataset && event.target.dataset.at;
  const record = at === undefined ? null : records[event.target.closest("details").dataset.number];
  showTip(event, record && tipOf(record, Number(at)));
});

function searchedText(record) {
  const texts = record.texts.map((token) => (typeof token === "string" ? token : token[0] ? token[1] : "")).join("");
  return texts + record.cut + record.messages.map((message) => message[1]).join("\n");
}

if (details.length) details[0].open = true;
