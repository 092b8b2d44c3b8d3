const all = [...document.querySelectorAll("details")];
document.getElementById("unfold").onclick = () => all.forEach((part) => { part.open = true; });
document.getElementById("fold").onclick = () => all.forEach((part) => { part.open = false; });

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
});
document.addEventListener("keydown", (event) => {
  const part = event.key === "Escape" && document.activeElement.closest("details[data-node]");
  if (part) document.getElementById(part.dataset.node).focus();
});
if (location.hash) {
  const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part && part.open === false) open(part);
}
