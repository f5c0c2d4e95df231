// Tables that are kept up to date in place: ordered by a column, filtered, a page at a time.

const ROWS = 100; // How many rows are shown at first, and more with each press of the button.

// A column: its name, the value that orders it, and what a cell shows: a text, or { text, tone, title, href }.
// `more(row)` is what a row shows when it is opened.
class Table {
  constructor({ element, key, columns, order, words, more = null, mark = null }) {
    Object.assign(this, { element, key, columns, order, words, more, mark });
    this.descending = true;
    this.rows = [];
    this.shown = ROWS;
    this.text = '';
    this.lines = new Map();
    this.opened = new Set();
    this.body = h('tbody');
    this.heads = columns.map((column) => {
      const button = h('button', { class: 'sort', onclick: () => this.sort(column) }, column.name);
      return h('th', { scope: 'col', class: column.kind ?? '' }, column.value ? button : column.name);
    });
    this.rest = h('button', { onclick: () => { this.shown += ROWS; this.draw(); } });
    this.count = h('p', { class: 'quiet', role: 'status' });
    const table = h('table', {}, h('thead', {}, h('tr', {}, ...this.heads)), this.body);
    element.replaceChildren(this.count, h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': element.dataset.label }, table), this.rest);
  }

  sort(column) {
    this.descending = this.order === column ? !this.descending : column.kind === 'number';
    this.order = column;
    this.draw();
  }

  filter(text) {
    this.text = text.trim().toLowerCase();
    this.shown = ROWS;
    this.draw();
  }

  fill(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const found = this.text ? this.rows.filter((row) => this.words(row).toLowerCase().includes(this.text)) : [...this.rows];
    const { order } = this;
    if (order) {
      const sign = this.descending ? -1 : 1;
      const least = this.descending ? -Infinity : Infinity;
      const value = (row) => order.value(row) ?? (order.kind === 'number' ? least : '');
      found.sort((a, b) => {
        const [one, other] = [value(a), value(b)];
        return one < other ? -sign : one > other ? sign : 0;
      });
    }
    const part = found.slice(0, this.shown);
    this.heads.forEach((head, at) => {
      const is = this.columns[at] === order;
      if (is) head.setAttribute('aria-sort', this.descending ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const rows = [];
    const kept = new Set();
    for (const row of part) {
      const key = this.key(row);
      kept.add(key);
      const line = this.line(key, row);
      rows.push(line.element);
      if (line.below) rows.push(line.below);
    }
    for (const key of this.lines.keys()) if (!kept.has(key)) this.lines.delete(key);
    // Rows move only if their order has changed, so the focus and a selection stay.
    if (rows.length !== this.body.children.length || rows.some((row, at) => this.body.children[at] !== row)) this.body.replaceChildren(...rows);
    this.rest.hidden = part.length === found.length;
    this.rest.textContent = `Show ${count(Math.min(ROWS, found.length - part.length))} more of ${count(found.length)}`;
    this.count.hidden = !this.text;
    this.count.textContent = `${count(found.length)} of ${count(this.rows.length)}`;
  }

  line(key, row) {
    let line = this.lines.get(key);
    if (!line) {
      const cells = this.columns.map((column, at) => (at === 0 ? h('th', { class: column.kind ?? '', scope: 'row' }) : h('td', { class: column.kind ?? '', 'data-label': column.name || null })));
      line = { cells, signs: [], element: h('tr', {}, ...cells), below: null };
      this.lines.set(key, line);
    }
    line.row = row;
    line.element.className = this.mark ? this.mark(row) : '';
    this.columns.forEach((column, at) => {
      let cell = column.cell(row);
      if (typeof cell !== 'object' || cell === null) cell = { text: cell };
      const sign = JSON.stringify(cell);
      if (line.signs[at] === sign) return;
      line.signs[at] = sign;
      const text = cell.href ? h('a', { href: cell.href }, cell.text) : cell.opens && this.more ? h('button', { class: 'open', 'aria-expanded': this.opened.has(key), onclick: () => this.open(key) }, cell.text) : h('span', {}, cell.text ?? '');
      text.className = `${text.className} ${cell.tone ?? ''}`.trim();
      line.cells[at].title = visible(cell.title ?? '');
      line.cells[at].replaceChildren(text, ...(cell.note ? [h('span', { class: `note ${cell.noteTone ?? 'quiet'}` }, cell.note)] : []));
      if (cell.mark) line.cells[at].prepend(h('i', { class: `mark ${cell.mark}` }));
    });
    if (this.opened.has(key)) {
      if (!line.below) line.below = h('tr', { class: 'below' }, h('td', { colspan: this.columns.length }));
      // What a reader is using stays as it is.
      if (!line.below.contains(document.activeElement)) this.more(row, line.below.firstChild);
    } else line.below = null;
    return line;
  }

  open(key) {
    const opens = !this.opened.delete(key);
    if (opens) this.opened.add(key);
    this.lines.get(key).element.querySelector('.open')?.setAttribute('aria-expanded', opens);
    this.draw();
  }
}

// Fills an opened row. Its buttons stay the same elements, so that a press is never lost to an update.
function detail(cell, parts, actions) {
  if (!cell.firstChild) cell.append(h('div'), h('div', { class: 'bar' }));
  cell.firstChild.replaceChildren(...parts);
  const sign = actions.map(([name]) => name).join();
  if (cell.lastChild.dataset.sign === sign) return;
  cell.lastChild.dataset.sign = sign;
  cell.lastChild.replaceChildren(...actions.map(([name, onclick, kind = '']) => h('button', { class: `act ${kind}`, onclick }, name)));
}
