"use strict";
(() => {
  const options = {
    renderer: "svg",
    actions: {export: true, source: false, compiled: false, editor: false},
    tooltip: {theme: "page"},
  };
  // A legend takes as many columns as there is room for; Vega fixes their number when it draws, so we choose it here.
  const room = (chart) => {
    const column = chart.spec.usermeta?.legendColumn;
    return column ? Math.max(1, Math.floor((chart.place.clientWidth - 80) / column)) : undefined;
  };
  // Names below an axis lie flat where there is room; on a narrow page they are slanted.
  const narrow = (chart) => chart.place.clientWidth < 600;
  const slanted = (key, value) =>
    key === "axis" && value?.labelAngle === 0 ? {...value, labelAngle: -35, labelAlign: "right"} : value;
  const fitting = (chart) => (narrow(chart) ? JSON.parse(JSON.stringify(chart.spec), slanted) : chart.spec);
  // A picture to those who hear the page; the menu beside it stays a menu.
  const tell = (place) => {
    const picture = place.querySelector("svg.marks");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", place.dataset.told);
    place.querySelector("details > summary")?.setAttribute("aria-label", "Save this chart");
  };
  const draw = (chart) => {
    chart.columns = room(chart);
    chart.drawn?.finalize();
    const {config} = fitting(chart);
    const legend = chart.columns ? {...config.legend, columns: chart.columns} : config.legend;
    const spec = {...fitting(chart), config: {...config, legend}};
    return vegaEmbed(chart.place, spec, {...options, downloadFileName: chart.name}).then(
      (drawn) => { chart.drawn = drawn; tell(chart.place); },
      (error) => { chart.place.textContent = "This chart could not be drawn: " + error.message; console.error(error); },
    );
  };
  let charts = [];
  const begin = () => {
    charts.forEach((chart) => chart.drawn?.finalize());
    charts = [...document.querySelectorAll("script[data-chart]")].map((element) => ({
      name: element.dataset.chart,
      place: document.getElementById("chart-" + element.dataset.chart),
      spec: JSON.parse(element.textContent),
    }));
    Promise.all(charts.map(draw)).then(() => document.documentElement.classList.add("drawn"));
  };
  begin();
  addEventListener("renewed", begin); // a live page has replaced its content
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => charts.filter((chart) => room(chart) !== chart.columns).forEach(draw), 150);
  });

  // Paper cannot be clicked: what is folded is opened for it, and folded again after.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.fold:not([open])")];
    opened.forEach((part) => { part.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((part) => { part.open = false; }));
})();
