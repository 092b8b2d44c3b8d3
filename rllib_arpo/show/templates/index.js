const rows = [...document.querySelectorAll("tbody tr")];
const filters = document.getElementById("filters");
function filter() {
  const want = new FormData(filters);
  const has = (list, one) => !one || list.split("\n").includes(one);
  const above = (value, least) => least === "" || Number(value) >= Number(least);
  let shown = 0;
  for (const row of rows) {
    const data = row.dataset;
    row.hidden = !(has(data.stop, want.get("stop")) && has(data.tool, want.get("tool"))
      && (!want.get("purpose") || data.purpose === want.get("purpose"))
      && above(data.reward, want.get("least")) && above(want.get("most") || Infinity, data.reward)
      && above(data.forks, want.get("forks")) && data.name.includes(want.get("name")));
    shown += !row.hidden;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} questions`;
}
filters.addEventListener("input", filter);
// A click on a column's name sorts by it, a second click reverses the order; "–" counts as the smallest number.
document.querySelectorAll("th").forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
  const down = head.ariaSort === "ascending";
  const text = (row) => row.cells[column].textContent.replace("−", "-");
  const number = (row) => (text(row) === "–" ? -Infinity : Number(text(row)));
  const numeric = rows.every((row) => !Number.isNaN(number(row)));
  rows.sort((a, b) => (numeric ? number(a) - number(b) || 0 : text(a).localeCompare(text(b))) * (down ? -1 : 1));
  document.querySelectorAll("th").forEach((other) => { other.ariaSort = null; });
  head.ariaSort = down ? "descending" : "ascending";
  document.querySelector("tbody").append(...rows);
}));
filters.addEventListener("submit", (event) => event.preventDefault());
filter();
