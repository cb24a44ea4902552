// Tables that are sorted by a click on a head, or by its key, and saved as CSV.
const worth = cell => (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value));

// Cells without a number are last, whichever way the others are sorted.
const comparing = (column, numeric, sign) => (one, other) => {
  const [a, b] = [one, other].map(row => row.cells[column]);
  if (!numeric) return sign * a.textContent.localeCompare(b.textContent, 'en', { numeric: true });
  const [m, n] = [a, b].map(worth);
  if (Number.isNaN(m) || Number.isNaN(n)) return Number.isNaN(m) - Number.isNaN(n);
  return sign * (m - n);
};

const makeSortable = box => {
  const table = box.querySelector('table'), body = table.tBodies[0];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const sort = (head, column) => {
    const numeric = head.classList.contains('number');
    const before = head.getAttribute('aria-sort');
    const falling = before ? before === 'ascending' : numeric; // of numbers the highest first
    heads.forEach(other => other.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
    body.append(...[...body.rows].sort(comparing(column, numeric, falling ? -1 : 1)));
  };
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = html('button', { type: 'button', class: 'sort', title: 'sort by this column' }, head.textContent);
    button.addEventListener('click', () => sort(head, column));
    head.replaceChildren(button);
  });
  const save = html('button', { type: 'button', class: 'save', title: 'save the table as CSV', 'aria-label': `${box.dataset.name}: save the table as CSV` }, 'CSV');
  const list = row => [...row.cells].flatMap(cell => [cell.textContent.trim(), ...Array(cell.colSpan - 1).fill('')]);
  save.addEventListener('click', () => saveData([...table.tHead.rows, ...body.rows].map(list), box.dataset.name));
  box.prepend(html('div', { class: 'tools' }, save));
};
document.querySelectorAll('.sortable').forEach(makeSortable);
