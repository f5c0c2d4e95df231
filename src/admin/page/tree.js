// Znodes: the tree to walk, and one of them to read and to edit.

const PAGE = 200;
const PAGE_MAX = 1000; // The endpoint gives no more at once.
const HEX_MAX = 64 * 1024;

const join = (parent, name) => (parent === '/' ? `/${name}` : `${parent}/${name}`);
const parent = (path) => path.slice(0, path.lastIndexOf('/')) || '/';
// In the endpoint's addresses, and in this page's.
const encoded = (path) => path.split('/').map(encodeURIComponent).join('/');
const url = (path) => `/tree${encoded(path)}`;
const linkTo = (path) => `#/tree${encoded(path)}`;
const linkedPath = (hash) => decodeURIComponent(hash.slice('#/tree'.length)) || '/';

// JSON with line breaks. The text of each value stays as it is: a number of many digits keeps them.
function pretty(text) {
  JSON.parse(text);
  let out = '';
  let depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  for (let at = 0; at < text.length; at += 1) {
    const c = text[at];
    if (c === '"') {
      const begin = at;
      for (at += 1; text[at] !== '"'; at += 1) if (text[at] === '\\') at += 1;
      out += text.slice(begin, at + 1);
    } else if (c === '{' || c === '[') {
      const rest = text.slice(at + 1).trimStart();
      if (rest[0] === '}' || rest[0] === ']') { out += c + rest[0]; at = text.length - rest.length; } else { depth += 1; out += c + line(); }
    } else if (c === '}' || c === ']') { depth -= 1; out += line() + c; } else if (c === ',') out += c + line();
    else if (c === ':') out += ': ';
    else if (!/\s/.test(c)) out += c;
  }
  return out;
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_MAX); at += 16) {
    const part = [...data.slice(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, '0'));
    const text = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${digits.slice(0, 8).join(' ').padEnd(23)}  ${digits.slice(8).join(' ').padEnd(23)}  ${text}`);
  }
  if (data.length > HEX_MAX) lines.push(`… ${bytes(data.length - HEX_MAX)} more`);
  return lines.join('\n');
}

const PERMISSIONS = { c: 'create', d: 'delete', r: 'read', w: 'write', a: 'admin' };
const permissions = (of) => [...of].map((letter) => PERMISSIONS[letter] ?? letter).join(', ');
const day = (ms) => (ms ? new Date(ms).toLocaleString('sv-SE') : 'with the cluster');
const kindOf = (stat) => (stat.ephemeral_owner ? 'ephemeral' : stat.is_container ? 'container' : stat.ttl ? `lives ${time(stat.ttl)}` : 'persistent');

// The children of the shown znode.
const childTable = new Table({
  element: $('children-list'),
  key: ({ path }) => path,
  words: ({ name }) => name,
  columns: [
    { name: 'Name', value: ({ name }) => name, cell: ({ path, name }) => ({ text: name, href: linkTo(path) }) },
    { name: 'Children', kind: 'number', value: ({ stat }) => stat?.num_children, cell: ({ stat }) => ({ text: count(stat?.num_children), tone: stat?.num_children ? '' : 'quiet' }) },
    { name: 'Length', kind: 'number', value: ({ stat }) => stat?.data_length, cell: ({ stat }) => bytes(stat?.data_length) },
    { name: 'Version', kind: 'number', value: ({ stat }) => stat?.version, cell: ({ stat }) => ({ text: count(stat?.version), tone: 'quiet' }) },
    { name: 'Kind', value: ({ stat }) => (stat ? kindOf(stat) : ''), cell: ({ stat }) => (stat ? { text: kindOf(stat), tone: 'quiet' } : 'not readable') },
    { name: 'Set', kind: 'half', value: ({ stat }) => stat?.mtime ?? 0, cell: ({ stat }) => (stat ? day(stat.mtime) : unknown) },
  ],
});

const nodes = {
  path: '/',
  items: new Map(),
  editing: false,
  form: 'text',
  stale: new Set(),

  // Makes the item of a znode in the tree.
  item(path, stat) {
    const twist = h('span', { class: 'twist', 'aria-hidden': 'true' });
    const hint = h('span', { class: 'hint' });
    const name = path === '/' ? '/' : path.slice(path.lastIndexOf('/') + 1);
    const row = h('div', { class: 'node' }, twist, h('span', { class: 'name', title: visible(path) }, name), hint);
    const element = h('li', { role: 'treeitem', tabindex: '-1', 'aria-selected': 'false' }, row);
    const item = { path, element, row, twist, hint, children: null, stat, shown: 0 };
    row.addEventListener('click', (event) => {
      if (event.target === twist && item.children) this.close(item);
      else if (event.target === twist) this.expand(item);
      else this.choose(path);
    });
    element.addEventListener('keydown', (event) => this.key(event, item));
    this.items.set(path, item);
    this.label(item);
    return item;
  },

  label(item) {
    const { stat } = item;
    const has = item.children !== null || (stat && stat.num_children > 0);
    item.twist.textContent = has ? (item.children ? '▾' : '▸') : '';
    if (has) item.element.setAttribute('aria-expanded', item.children !== null);
    else item.element.removeAttribute('aria-expanded');
    item.hint.textContent = stat ? [stat.ephemeral_owner && 'ephemeral', stat.num_children > 0 && count(stat.num_children)].filter(Boolean).join(' · ') : 'not readable';
  },

  // Lists the first children, and more of them on demand: there may be 100,000. What is listed already stays in its place.
  async expand(item, first = PAGE) {
    // The indent is bounded: a deep tree stays readable.
    const depth = item.path.split('/').length;
    const list = item.children ?? h('ul', { role: 'group', class: depth > 12 ? 'deepest' : depth > 6 ? 'deep' : null });
    item.shown = 0;
    const more = async (after, limit = PAGE) => {
      const page = await read(`${url(item.path)}?children&limit=${limit}${after ? `&after=${encodeURIComponent(after)}` : ''}`);
      const rows = page.children.map(({ name, stat }) => {
        const known = this.items.get(join(item.path, name));
        if (known) this.label(Object.assign(known, { stat }));
        return (known ?? this.item(join(item.path, name), stat)).element;
      });
      if (!after) {
        const kept = new Set(rows);
        const chosen = this.items.get(this.path)?.element ?? null;
        for (const old of [...list.children]) if (!kept.has(old) && !(page.next && old.contains(chosen))) old.remove();
      }
      rows.forEach((row, at) => {
        const place = list.children[item.shown + at];
        if (place !== row) list.insertBefore(row, place ?? null);
      });
      item.shown += page.children.length;
      if (page.next) {
        const failed = (error) => rest.append(h('span', { class: 'bad' }, visible(error.message)));
        const go = (to) => more(to).then(() => rest.remove(), failed);
        const from = h('input', { placeholder: 'or from a name', 'aria-label': `Show children of ${item.path} from this name on`, onkeydown: (event) => {
          event.stopPropagation();
          if (event.key === 'Enter' && from.value) go(from.value);
        } });
        const rest = h('li', { role: 'none', class: 'rest' }, h('button', { onclick: () => go(page.next) }, `${PAGE} more`), from);
        list.append(rest);
      }
    };
    try { await more(null, Math.min(first, PAGE_MAX)); } catch (error) { list.append(h('li', { role: 'none', class: 'bad' }, visible(error.message))); }
    item.children = list;
    if (!list.isConnected) item.element.append(list);
    this.label(item);
  },

  close(item) {
    item.children?.remove();
    item.children = null;
    for (const path of this.items.keys()) if (path !== item.path && path.startsWith(item.path === '/' ? '/' : `${item.path}/`)) this.items.delete(path);
    this.label(item);
  },

  key(event, item) {
    if (event.target !== item.element) return;
    const all = [...$('nodes').querySelectorAll('[role=treeitem]')];
    const at = all.indexOf(item.element);
    const to = (element) => { if (element) { this.rove(element); element.focus(); } };
    const keys = {
      ArrowDown: () => to(all[at + 1]),
      ArrowUp: () => to(all[at - 1]),
      Home: () => to(all[0]),
      End: () => to(all[all.length - 1]),
      ArrowRight: async () => {
        if (item.children) to(item.children.querySelector('[role=treeitem]'));
        else if (item.stat?.num_children > 0) await this.expand(item);
      },
      ArrowLeft: () => {
        if (item.children) this.close(item);
        else to(this.items.get(parent(item.path))?.element);
      },
      Enter: () => this.choose(item.path),
      ' ': () => this.choose(item.path),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  },

  rove(element) {
    for (const other of $('nodes').querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    element.tabIndex = 0;
  },

  choose(path) {
    const hash = linkTo(path);
    if (location.hash === hash) this.open(path);
    else location.hash = hash;
  },

  // Shows a znode, and the way to it in the tree.
  async open(path) {
    if (this.editing && path !== this.path && !confirm('Leave without saving?')) return;
    this.editing = false;
    this.path = path;
    $('path').value = path;
    if (!$('nodes').children.length) {
      const root = this.item('/', { num_children: 1 });
      $('nodes').append(root.element);
      await this.expand(root);
      root.stat.num_children = root.children.children.length;
      this.label(root);
    }
    const names = path.split('/').filter(Boolean);
    let at = '/';
    for (const name of names) {
      const above = this.items.get(at);
      if (above && !above.children) await this.expand(above);
      at = join(at, name);
      // It is on a later page of the children: it is shown after the first ones.
      if (above?.children && !this.items.has(at)) {
        try {
          const { stat } = await read(url(at));
          if (!this.items.has(at)) above.children.insertBefore(this.item(at, stat).element, above.children.querySelector(':scope > .rest'));
        } catch { break; }
      }
    }
    for (const item of this.items.values()) item.element.setAttribute('aria-selected', item.path === path);
    const item = this.items.get(path) ?? this.items.get('/');
    this.rove(item.element);
    item.row.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    $('nodes').scrollLeft = 0;
    childTable.filter('');
    await this.show();
    await this.list();
  },

  // Lists the children of the shown znode.
  async list() {
    const { path } = this;
    const { children, next } = await read(`${url(path)}?children&limit=${PAGE_MAX}`).catch(() => ({ children: [] }));
    if (path !== this.path) return;
    childTable.fill(children.map(({ name, stat }) => ({ name, stat, path: join(path, name) })));
    $('children').hidden = !children.length;
    $('children-count').textContent = next ? `The first ${count(children.length)}. The tree and the search have the others.` : count(children.length);
  },

  // Shows parts about a znode. The names in its path are links; the end of a long one is in sight.
  put(path, ...parts) {
    const names = [...path.matchAll(/\/[^/]*/g)].map(({ 0: name, index }) => [name, path.slice(0, index + name.length)]);
    const heading = h('h3', {}, ...names.map(([name, to]) => (to === path ? name : h('a', { href: linkTo(to) }, name))));
    $('znode').replaceChildren(heading, ...parts);
    heading.scrollTop = heading.scrollHeight;
  },

  async show() {
    const { path } = this;
    try {
      const znode = await read(url(path));
      // What was asked for before an edit began does not replace it.
      if (path === this.path && !this.editing) this.fill(znode);
    } catch (error) {
      if (this.editing) return;
      const again = error.status === 404 && writable ? h('div', { class: 'bar' }, h('button', { onclick: () => this.create(path) }, 'Create it')) : '';
      this.put(path, h('p', { class: error.status === 404 ? 'quiet' : 'bad' }, error.message), again);
    }
  },

  fill({ path, data, stat, acl, quotas }) {
    const raw = data.text !== undefined ? new TextEncoder().encode(data.text) : Uint8Array.from(atob(data.base64), (c) => c.charCodeAt(0));
    const forms = { text: data.text, hex: hex(raw) };
    try { if (/^\s*[[{]/.test(data.text ?? '')) forms.json = pretty(data.text); } catch { /* It is no JSON. */ }
    const view = h('pre', { tabindex: '0', 'aria-label': 'Data' });
    const buttons = {};
    const draw = (form) => {
      view.className = form;
      view.textContent = raw.length ? visible(forms[form]) : '(no data)';
      for (const [name, button] of Object.entries(buttons)) button.setAttribute('aria-pressed', name === form);
    };
    for (const [form, name] of [['text', 'Text'], ['json', 'JSON'], ['hex', 'Hex']]) {
      if (forms[form] !== undefined) buttons[form] = h('button', { onclick: () => { this.form = form; draw(form); } }, name);
    }
    const bar = h('div', { class: 'bar' }, ...Object.values(buttons));
    if (writable) {
      if (data.text !== undefined) bar.append(h('button', { onclick: () => this.edit({ path, data, stat }) }, 'Edit'));
      bar.append(h('button', { onclick: () => this.create(join(path, '')) }, 'Add a child'));
      if (path !== '/') bar.append(h('button', { class: 'danger', onclick: () => this.remove(path, stat) }, 'Delete'));
    }
    const pairs = [
      ['version', count(stat.version)], ['length', bytes(stat.data_length)], ['children', count(stat.num_children)],
      ['set', day(stat.mtime)], ['created', day(stat.ctime)],
      ['kind', kindOf(stat)],
      ['owner', stat.ephemeral_owner ? h('a', { href: `#/sessions/${stat.ephemeral_owner}` }, stat.ephemeral_owner) : 'none'], ['mzxid', count(stat.mzxid)], ['czxid', count(stat.czxid)], ['pzxid', count(stat.pzxid)],
      ['cversion', count(stat.cversion)], ['aversion', count(stat.aversion)],
    ];
    this.put(path, bar, view, facts(pairs), ...this.rules(acl, quotas));
    const first = forms.json !== undefined && this.form !== 'hex' ? 'json' : 'text';
    draw(forms[this.form] !== undefined && this.form !== 'text' ? this.form : forms[first] !== undefined ? first : 'hex');
  },

  // Who may do what with a znode, and how much may be in it.
  rules(acl, quotas) {
    const may = acl === null ? [h('p', { class: 'quiet' }, 'This endpoint may not read who has access.')]
      : acl.map((entry) => h('li', {}, h('span', { class: 'mono' }, entry.id), h('span', { class: 'quiet' }, permissions(entry.permissions))));
    const use = (used, soft, hard, form) => `${form(used)}${hard !== null ? ` of ${form(hard)}` : soft !== null ? ` of ${form(soft)}, which is only reported` : ''}`;
    const full = (used, limit) => (limit !== null && used >= limit ? 'bad' : limit !== null && used >= limit * 0.9 ? 'warn' : '');
    const limited = (quotas ?? []).map(({ path, limits, usage }) => h('li', {}, h('a', { class: 'mono', href: linkTo(path) }, path),
      h('span', { class: full(usage.znodes, limits.znodes_hard ?? limits.znodes) }, `${use(usage.znodes, limits.znodes, limits.znodes_hard, count)} znodes`),
      h('span', { class: full(usage.bytes, limits.bytes_hard ?? limits.bytes) }, use(usage.bytes, limits.bytes, limits.bytes_hard, bytes))));
    const parts = [h('h4', {}, 'Access'), h('ul', { class: 'rules' }, ...may)];
    if (limited.length) parts.push(h('h4', {}, 'Quotas'), h('ul', { class: 'rules' }, ...limited));
    return parts;
  },

  // Saves only if nobody else has changed the znode since it was shown.
  edit({ path, data, stat }) {
    this.editing = true;
    const text = h('textarea', { 'aria-label': `Data of ${path}`, spellcheck: 'false' });
    text.value = data.text;
    const failed = h('p', { class: 'bad', role: 'alert' });
    const save = async () => {
      try {
        await ask(`${url(path)}?version=${stat.version}`, { method: 'PUT', body: text.value });
        this.editing = false;
        await this.show();
      } catch (error) { failed.textContent = visible(error.message); }
    };
    this.put(path, h('div', { class: 'bar' }, h('button', { class: 'main', onclick: save }, 'Save'), h('button', { onclick: () => { this.editing = false; this.show(); } }, 'Cancel')), text, failed);
    text.focus();
  },

  create(path) {
    this.editing = true;
    const at = h('input', { 'aria-label': 'Path of the new znode', autocapitalize: 'off', spellcheck: 'false' });
    at.value = path;
    const text = h('textarea', { 'aria-label': 'Data of the new znode', spellcheck: 'false' });
    const mode = h('select', { 'aria-label': 'Kind' }, h('option', { value: 'persistent' }, 'persistent'), h('option', { value: 'persistent_sequential' }, 'sequential'), h('option', { value: 'container' }, 'container'));
    const failed = h('p', { class: 'bad', role: 'alert' });
    const save = async () => {
      try {
        const created = await (await ask(`${url(at.value)}?mode=${mode.value}`, { method: 'POST', body: text.value })).json();
        this.editing = false;
        await this.again(parent(created.path));
        this.choose(created.path);
      } catch (error) { failed.textContent = visible(error.message); }
    };
    $('znode').replaceChildren(h('h3', {}, 'A new znode'), h('div', { class: 'bar' }, at, mode), text, h('div', { class: 'bar' }, h('button', { class: 'main', onclick: save }, 'Create'), h('button', { onclick: () => { this.editing = false; this.show(); } }, 'Cancel')), failed);
    at.focus();
  },

  async remove(path, stat) {
    if (!confirm(`Delete ${visible(path)}?`)) return;
    try {
      await ask(`${url(path)}?version=${stat.version}`, { method: 'DELETE' });
      await this.again(parent(path));
      this.choose(parent(path));
    } catch (error) { $('znode').append(h('p', { class: 'bad', role: 'alert' }, error.message)); }
  },

  // Lists the children of a znode again, if they are shown.
  async again(path) {
    const item = this.items.get(path);
    if (!item) return;
    // A long list is not read again by itself: its reader would lose the place.
    if (item.shown > PAGE_MAX) return;
    if (item.children) {
      await this.expand(item, Math.max(PAGE, item.shown));
      for (const [path, { element }] of this.items) if (!element.isConnected) this.items.delete(path);
    }
    if (item.stat) {
      item.stat = { ...item.stat, num_children: item.children && !item.children.querySelector(':scope > .rest') ? item.children.children.length : item.stat.num_children };
      this.label(item);
    }
    const chosen = this.items.get(this.path);
    chosen?.element.setAttribute('aria-selected', 'true');
    if (chosen && !$('nodes').contains(document.activeElement)) this.rove(chosen.element);
  },

  // After a reported change, the shown znodes are read again, at most every second.
  changed({ kind, path }) {
    if (view !== 'tree') return;
    if (kind === 'created' || kind === 'deleted') this.stale.add(parent(path));
    if (path === this.path) this.stale.add('');
    if (parent(path) === this.path) this.stale.add('children');
  },

  async freshen() {
    const stale = [...this.stale];
    this.stale.clear();
    for (const path of stale) {
      if (path === '') { if (!this.editing) await this.show(); } else if (path === 'children') await this.list(); else if (this.items.get(path)?.children) await this.again(path);
      else if (this.items.get(path)?.stat && this.items.get(path).stat.num_children === 0) { this.items.get(path).stat.num_children = 1; this.label(this.items.get(path)); }
    }
  },
};

$('go').addEventListener('submit', (event) => {
  event.preventDefault();
  nodes.choose($('path').value.trim() || '/');
});
setInterval(() => { if (nodes.stale.size) nodes.freshen(); }, 1000);
