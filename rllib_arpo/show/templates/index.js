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
filters.addEventListener("submit", (event) => event.preventDefault());
filter();
