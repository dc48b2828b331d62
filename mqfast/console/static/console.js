/* Refresh, charts, keys, copies and confirmations of the console. Must never build HTML from text of the cluster. */
"use strict";

const REFRESH_MS = 5000;
const say = (text) => {
  const said = document.getElementById("said");
  said.textContent = text;
  said.classList.add("shown");
  setTimeout(() => said.classList.remove("shown"), 2000);
};
const live = () => document.getElementById("live");
let paused = sessionStorage.getItem("mqfast-paused") === "yes";

/* --- refresh --- */

function isBusy() {
  const at = document.activeElement;
  return document.hidden || live().contains(at) && at.matches("input, select, textarea, summary")
    || live().querySelector("details[open]") !== null || String(getSelection()) !== "";
}

setInterval(() => {
  if (window.htmx && !paused && live().dataset.live === "yes" && !isBusy()) window.htmx.trigger(live(), "refresh");
}, REFRESH_MS);

function showPause() {
  const button = document.querySelector("[data-do=pause]");
  if (!button) return;
  button.hidden = !window.htmx || live().dataset.live !== "yes";
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Paused" : "Pause";
}

function pause() {
  paused = !paused;
  sessionStorage.setItem("mqfast-paused", paused ? "yes" : "no");
  showPause();
  say(paused ? "Paused" : "Refreshes every 5 seconds");
}

/* --- charts --- */

function drawn(box) {
  const { times: allTimes, values: allValues, label, unit } = JSON.parse(box.dataset.chart);
  const first = allValues.findIndex((value) => value !== null);
  if (!window.uPlot || first < 0) return;
  // A young console has measured for minutes only: no empty hour before.
  const begin = Math.min(first, allValues.length - 40);
  const times = allTimes.slice(begin), values = allValues.slice(begin);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const text = (value, at) => at === null ? "" : value === null ? "unknown" : value.toLocaleString("en") + unit;
  const clock = (at, length) => new Date(at * 1000).toISOString().slice(11, 11 + length);
  const options = {
    width: box.clientWidth, height: 200, cursor: { y: false }, legend: { live: true },
    scales: { y: { range: (plot, low, high) => [0, Math.max(high * 1.08, 1)] } },
    axes: [{ ...axis, values: (plot, ticks) => ticks.map((at) => clock(at, ticks[1] - ticks[0] < 60 ? 8 : 5)) }, { ...axis, size: 64, values: (plot, ticks) => ticks.map((tick) => tick.toLocaleString("en")) }],
    series: [
      { label: "UTC", value: (plot, at) => at ? clock(at, 8) : "" },
      { label, stroke: colour("--accent"), fill: colour("--accent-soft"), width: 2, points: { show: false }, spanGaps: false, value: (plot, value, series, at) => text(value, at) },
    ],
    tzDate: (at) => window.uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
  };
  box.replaceChildren();
  const plot = new window.uPlot(options, [times, values], box);
  box.dataset.drawn = "yes";
  new ResizeObserver(() => box.isConnected && plot.setSize({ width: box.clientWidth, height: 200 })).observe(box);
}

function redraw() {
  for (const box of document.querySelectorAll("[data-chart]:not([data-drawn])")) drawn(box);
  showPause();
  for (const input of document.querySelectorAll("[data-confirm]")) checkConfirmation(input);
  count();
}

/* --- forms --- */

function checkConfirmation(input) {
  input.form.querySelector("button.main").disabled = input.value.trim() !== input.dataset.confirm;
}

function count() {
  const label = document.querySelector("[data-count]");
  if (!label) return;
  const chosen = document.querySelectorAll(`input[name="${label.dataset.count}"]:checked`).length;
  label.textContent = chosen ? `${chosen} chosen` : "nothing chosen";
}

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-confirm]")) checkConfirmation(event.target);
});
document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("[data-submit]")) box.form.requestSubmit();
  if (box.matches("[data-all]")) {
    for (const one of document.querySelectorAll(`input[name="${box.dataset.all}"]`)) one.checked = box.checked;
  }
  count();
});

/* --- buttons and keys --- */

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied: " + text);
  } catch {
    say(text);
  }
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("mqfast-theme", root.dataset.theme);
  for (const box of document.querySelectorAll("[data-drawn]")) {
    delete box.dataset.drawn;
    drawn(box);
  }
}

function step(way) {
  const links = [...live().querySelectorAll("tbody a, .findings a")];
  const firsts = links.filter((link, index) => index === 0 || link.closest("tr, li") !== links[index - 1].closest("tr, li"));
  const at = firsts.indexOf(document.activeElement);
  const next = firsts[Math.min(firsts.length - 1, Math.max(0, at + way))];
  if (next) next.focus();
}

const DO = { theme, pause, keys: () => document.getElementById("keys").showModal() };
const PLACES = { n: "/", g: "/groups", t: "/topics", m: "/messages", d: "/dlq", b: "/brokers" };

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-do], [data-copy]");
  if (!button) return;
  if (button.dataset.copy) copy(button.dataset.copy);
  else DO[button.dataset.do]();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (document.getElementById("keys").open) return;
  const key = event.key;
  if (key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) field.focus();
    event.preventDefault();
  } else if (key === "?") DO.keys();
  else if (key === "p") pause();
  else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (PLACES[key]) location.href = PLACES[key];
});

for (const link of document.querySelectorAll("[data-json]")) {
  const query = new URLSearchParams(location.search);
  query.set("format", "json");
  link.href = "?" + query;
}
new MutationObserver(redraw).observe(document.querySelector(".body"), { childList: true });
redraw();
