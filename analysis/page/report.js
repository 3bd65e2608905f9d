const dark = matchMedia("(prefers-color-scheme: dark)");
function look(layout) {
  const ink = dark.matches ? "#e6e6e6" : "#1b1b1b", line = dark.matches ? "#444" : "#e4e4e4";
  const axis = (one) => ({...one, gridcolor: line, zerolinecolor: line});
  return {...layout, font: {...layout.font, color: ink}, paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis)};
}
for (const data of document.querySelectorAll("script.chart")) {
  const place = data.previousElementSibling, figure = JSON.parse(data.textContent);
  const plain = JSON.stringify(figure.data);
  const ink = () => JSON.parse(dark.matches ? plain.replaceAll("#000000", "#ffffff") : plain);
  const draw = () => Plotly.react(place, ink(), look(figure.layout), figure.config);
  draw();
  dark.addEventListener("change", draw);
  new ResizeObserver(() => Plotly.Plots.resize(place)).observe(place);
  const save = document.createElement("button");
  save.className = "save";
  save.textContent = "download this picture";
  save.addEventListener("click", () => Plotly.downloadImage(place, {format: "svg",
    filename: place.closest("section").querySelector("h2").textContent.replaceAll(" ", "_")}));
  data.after(save);
}
for (const box of document.querySelectorAll("input.more")) {
  box.addEventListener("change", () =>
    box.closest("section").querySelector("table.rows").classList.toggle("all", box.checked));
}
for (const table of document.querySelectorAll("table.rows")) {
  new DataTable(table, {paging: false, info: false, order: [], autoWidth: false,
    layout: {topStart: table.rows.length > 6 ? "search" : null, topEnd: null, bottomStart: null,
      bottomEnd: null},
    language: {search: "", searchPlaceholder: "filter"}});
}
