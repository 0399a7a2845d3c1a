'use strict';
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Charts, where Bokeh is in the page; the buttons choose what runs along their horizontal axis.
const items = read('items');
const plots = items.length ? items.map((item, n) => Bokeh.embed.embed_item(item, `chart${n}`)) : [];
async function chooseAxis(chosen) {
  const { axis, label } = chosen.dataset;
  all('[data-axis]').forEach((each) => each.setAttribute('aria-pressed', String(each === chosen)));
  all('[data-still]').forEach((each) => { each.hidden = each.dataset.still !== axis; });
  for (const views of await Promise.all(plots)) {
    const plot = [...views][0].model;
    plot.below.forEach((each) => { if ('axis_label' in each) each.axis_label = label; });
    for (const source of new Set(plot.renderers.map((each) => each.data_source))) {
      source.data = { ...source.data, x: source.data[axis] };
    }
    plot.reset.emit();
  }
}
all('[data-axis]').forEach((each) => each.addEventListener('click', () => chooseAxis(each)));
async function toggleLine(button) {
  const figures = all('.charts figure');
  const views = await plots[figures.indexOf(button.closest('figure'))];
  const visible = button.getAttribute('aria-pressed') !== 'true';
  button.setAttribute('aria-pressed', String(visible));
  const parts = [...views][0].model.renderers.filter((each) => each.name === `line${button.dataset.line}`);
  parts.forEach((each) => { each.visible = visible; });
}
all('[data-line]').forEach((each) => each.addEventListener('click', () => toggleLine(each)));

// Tables: a click on a header sorts by its column, another one turns the order round.
function sortTable(header) {
  const up = header.getAttribute('aria-sort') !== 'ascending';
  const body = header.closest('table').tBodies[0];
  const column = header.cellIndex;
  const key = (row) => {
    const cell = row.cells[column];
    return 'value' in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  const compare = (a, b) => {
    if (typeof a === 'number' && typeof b === 'number') return a - b;
    if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1;
    return a.localeCompare(b, 'en', { numeric: true });
  };
  const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)) * (up ? 1 : -1));
  body.append(...rows);
  all('th', header.parentElement).forEach((each) => each.setAttribute('aria-sort', 'none'));
  header.setAttribute('aria-sort', up ? 'ascending' : 'descending');
}
all('th button').forEach((each) => each.addEventListener('click', () => sortTable(each.parentElement)));

// Files.
const quote = (value) => {
  const text = value === null || value === undefined ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const joinRows = (rows) => rows.map((row) => row.map(quote).join(',')).join('\n') + '\n';
function save(text, name, type) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function joinRun(rows) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  return joinRows([columns, ...rows.map((row) => columns.map((name) => row[name]))]);
}
all('[data-file]').forEach((each) => each.addEventListener('click', () => {
  const figures = read('figures');
  const { file, run } = each.dataset;
  if (file === 'json') save(JSON.stringify(figures, null, 1), 'figures.json', 'application/json');
  else save(joinRun(figures.runs[run]), `${run}.csv`, 'text/csv');
}));
all('[data-csv]').forEach((each) => each.addEventListener('click', () => {
  const table = each.closest('.table');
  const rows = all('tr', table).map((row) => [...row.cells].map((c) => c.dataset.value ?? c.textContent));
  save(joinRows(rows), `${all('h4', table)[0].textContent}.csv`, 'text/csv');
}));

all('.picture img').forEach((each) => each.addEventListener('click', () => each.classList.toggle('whole')));
