"use strict";
const points = JSON.parse(document.getElementById("points").textContent);
const charts = [...document.querySelectorAll("svg.chart")], tip = document.getElementById("tip");

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

function show(event) {
  const svg = event.currentTarget, box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  const left = +svg.dataset.left, right = +svg.dataset.right, last = +svg.dataset.last;
  const x = (event.clientX - box.left) * view.width / box.width;
  const wanted = Math.min(Math.max((x - left) / (right - left), 0), 1) * last;
  const [steps] = Object.values(points)[0] ?? [[]];
  if (!steps.length) return;
  const step = steps[nearest(steps, wanted)], at = left + step / last * (right - left);
  for (const line of document.querySelectorAll(".cursor")) {
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    line.setAttribute("visibility", "visible");
  }
  const table = document.createElement("table");
  const row = (name, value) => {
    const cells = table.insertRow();
    cells.insertCell().textContent = name;
    cells.insertCell().textContent = value;
  };
  row("step", step.toLocaleString());
  for (const [name, [where, values]] of Object.entries(points)) {
    const index = nearest(where, step);
    if (name.endsWith(" loss") || where[index] === step)
      row(where[index] === step ? name : `${name} (step ${where[index]})`, values[index]);
  }
  tip.replaceChildren(table);
  tip.hidden = false;
  const over = event.clientX + 16 + tip.offsetWidth > innerWidth;
  tip.style.left = `${over ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16}px`;
  tip.style.top = `${Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)}px`;
}

function hide() {
  tip.hidden = true;
  for (const line of document.querySelectorAll(".cursor")) line.setAttribute("visibility", "hidden");
}

for (const svg of charts) {
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerleave", hide);
}
