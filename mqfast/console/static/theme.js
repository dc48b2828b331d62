/* Sets the chosen colours before the page is painted. Must never wait for anything. */
"use strict";
const chosen = localStorage.getItem("mqfast-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
