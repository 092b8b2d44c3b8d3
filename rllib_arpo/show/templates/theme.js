"use strict";
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").onclick = () => {
  const now = root.style.colorScheme || (dark.matches ? "dark" : "light");
  root.style.colorScheme = now === "dark" ? "light" : "dark";
};
