const all = [...document.querySelectorAll("details")];
const say = (text) => { document.getElementById("said").textContent = text; };
document.getElementById("unfold").onclick = () => all.forEach((part) => { part.open = true; });
document.getElementById("fold").onclick = () => all.forEach((part) => { part.open = false; });

function copyByHand(text) {
  const area = document.body.appendChild(document.createElement("textarea"));
  area.value = text;
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied ? Promise.resolve() : Promise.reject();
}
document.getElementById("copy").onclick = (event) => {
  const text = [...document.querySelectorAll(".outline")].map((part) => part.textContent).join("\n");
  (navigator.clipboard ? navigator.clipboard.writeText(text).catch(() => copyByHand(text)) : copyByHand(text))
    .then(() => say("Copied."), () => say("The browser does not allow copying."))
    .finally(() => event.target.focus());
};

function open(part) {
  part.open = true;
  part.scrollIntoView({ block: "nearest" });
  part.querySelector("summary").focus();
}
document.querySelectorAll("a[data-turn]").forEach((node) => {
  node.addEventListener("click", (event) => {
    event.preventDefault();
    open(document.getElementById(node.dataset.turn));
  });
  node.addEventListener("keydown", (event) => {
    const to = document.getElementById(node.dataset[event.key.toLowerCase()]);
    if (to) { event.preventDefault(); to.focus(); }
  });
});
document.addEventListener("keydown", (event) => {
  const part = event.key === "Escape" && document.activeElement.closest("details[data-node]");
  if (part) document.getElementById(part.dataset.node).focus();
});
if (location.hash) {
  const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part && part.open === false) open(part);
}
