// Locks and sessions: read again while they are looked at.

// Who holds a session: a member, a client of its gateway (whose address has a port), or an instance without a replica.
// Before the address stands the name that its user gave the instance, if any.
function holder({ name, owner, owner_id: id, served_by: member, from }) {
  const port = /^(\d+\.){3}\d+:|^\[/;
  const named = (address) => (name ? [name, address].filter(Boolean).join(' at ') : address);
  if (owner) return from && port.test(from) ? `${from} through ${owner}` : named(owner);
  if (member) return `${named(from) ?? 'a client'} of ${member}`;
  return from ?? id;
}

let holders = new Map();
const who = (of) => holders.get(of?.session) ?? of?.session ?? (of ? 'no session' : unknown);
const since = (of) => (of ? Math.max(0, Date.now() - of.since) : null);
// Takers of an empty queue wait for items, and not for each other.
const idle = (of) => of.recipe === 'queue of takers' && !of.holders.length;

// The table of a recipe that shares work says itself how its cells are shown.
const LATE = 60000; // What is so much too late needs attention.
function tableCell({ name, kind }, row) {
  const value = row[name];
  if (value === undefined) return '';
  if (kind === 'session') return holders.has(value) ? `${holders.get(value)} (${value})` : value;
  if (kind === 'since') return time(Math.max(0, Date.now() - value));
  if (kind === 'due') return value < Date.now() ? `late by ${time(Date.now() - value)}` : `in ${time(value - Date.now())}`;
  return kind === 'count' ? count(value) : value;
}
const isWrong = ({ name, kind }, row) => row[name] !== undefined && (kind === 'wrong' || (kind === 'due' && Date.now() - row[name] > LATE));
const wrongRows = ({ table }) => table?.rows.filter((row) => table.columns.some((column) => isWrong(column, row))).length ?? 0;
const total = ({ table }) => table.rows.length + table.left_out;

// The whole table, with what may be done to a timer.
function tableOf(of) {
  const { rows, left_out: more } = of.table;
  const columns = of.table.columns.filter(({ name }) => rows.some((row) => row[name] !== undefined));
  const timer = (row, what, name) => h('button', { class: 'act', onclick: () => changeTimer(`${of.path === '/' ? '' : of.path}/${row.timer}`, what, name) }, name);
  const actions = (row) => (row.state === 'paused' ? [timer(row, 'resume', 'Resume')] : [timer(row, 'pause', 'Pause')]).concat(timer(row, 'fire', 'Fire now'));
  const acts = writable && of.recipe === 'schedule';
  const head = h('tr', {}, ...columns.map(({ name }) => h('th', { scope: 'col' }, name.replaceAll('_', ' '))), acts ? h('th') : '');
  const line = (row) => h('tr', {}, ...columns.map((column) => h('td', { class: `${isWrong(column, row) ? 'bad strong' : ''} ${column.kind === 'session' ? 'path' : ''}`, 'data-label': column.name.replaceAll('_', ' ') }, tableCell(column, row))), acts ? h('td', { class: 'bar' }, ...actions(row)) : '');
  return [h('div', { class: 'scroll' }, h('table', { class: 'work' }, h('thead', {}, head), h('tbody', {}, ...rows.slice(0, 200).map(line)))), rows.length > 200 || more ? h('p', { class: 'quiet' }, `${count(Math.max(0, rows.length - 200) + more)} more.`) : ''];
}

const waitersColumn = { name: 'Waiting', kind: 'number', value: (of) => of.waiters.length + wrongRows(of), cell: (of) => (of.table ? { text: count(wrongRows(of)), tone: wrongRows(of) ? 'bad strong' : 'quiet', title: 'rows that need attention' } : { text: count(of.waiters.length), tone: of.waiters.length && !idle(of) ? 'warn strong' : 'quiet' }) };
const lockTable = new Table({
  element: $('lock-list'),
  key: (of) => `${of.recipe} ${of.path}`,
  words: (of) => `${of.path} ${of.recipe} ${JSON.stringify(of.table?.rows ?? '')} ${[...of.holders, ...of.waiters].map((one) => `${who(one)} ${one.label} ${one.session}`).join(' ')}`,
  mark: () => 'lock',
  order: waitersColumn,
  columns: [
    { name: 'Path', kind: 'path', value: (of) => of.path, cell: (of) => ({ text: of.path, href: linkTo(of.path) }) },
    waitersColumn,
    { name: 'Held by', kind: 'path', value: (of) => who(of.holders[0]), cell: (of) => (of.table ? { text: of.table.columns[0].kind === 'count' ? of.table.columns.filter(({ kind }) => kind === 'count').map(({ name }) => `${count(of.table.rows[0][name])} ${name}`).join(', ') : `${count(total(of))} rows, ${count(wrongRows(of))} need attention`, tone: 'quiet' } : { text: of.holders.length > 1 ? `${who(of.holders[0])} and ${of.holders.length - 1} more` : who(of.holders[0]), tone: of.holders.length ? 'holds' : 'quiet', title: of.holders[0]?.session ?? '', note: of.holders[0]?.label }) },
    { name: 'For', kind: 'number', value: (of) => since(of.holders[0]), cell: (of) => time(since(of.holders[0])) },
    { name: 'Kind', value: (of) => of.recipe, cell: (of) => ({ text: of.recipe, tone: 'quiet' }) },
    { name: '', cell: () => ({ text: 'All', opens: true }) },
  ],
  more(of, cell) {
    if (of.table) {
      cell.replaceChildren(...tableOf(of));
      return;
    }
    const one = (word) => (of) => h('li', {}, h('span', { class: word }, word), h('span', {}, who(of)), h('span', { class: 'quiet' }, `${of.kind}, ${time(since(of))}`), h('a', { class: 'mono quiet', href: `#/sessions/${of.session ?? ''}` }, of.session ?? 'no session'), h('span', { class: 'quiet' }, of.label));
    const shown = of.waiters.slice(0, 200);
    cell.replaceChildren(h('ol', { class: 'line' }, ...of.holders.map(one('holds')), ...shown.map(one('waits'))), shown.length < of.waiters.length ? h('p', { class: 'quiet' }, `${count(of.waiters.length - shown.length)} more wait.`) : '');
  },
});

const ephemerals = new Map();
const sessionTable = new Table({
  element: $('session-list'),
  key: (session) => session.id,
  words: (session) => `${session.id} ${holder(session)} ${session.owner_id}`,
  columns: [
    { name: 'Instance', value: (session) => session.name ?? session.owner ?? session.served_by ?? '', cell: (session) => (session.owner ? { text: session.name ?? session.owner, note: session.name ? session.owner : '' } : { text: session.name ?? `client ${session.owner_id.slice(0, 8)}`, title: session.owner_id, note: session.served_by ? `of ${session.served_by}` : 'at no member now' }) },
    { name: 'Address', kind: 'half', value: (session) => session.from ?? '', cell: (session) => session.from ?? unknown },
    { name: 'Requests/s', kind: 'number', value: (session) => session.requests_per_second, cell: (session) => ({ text: count(session.requests_per_second), tone: session.requests_per_second ? '' : 'quiet', title: 'of the last ten seconds' }) },
    { name: 'Ephemerals', kind: 'number', value: (session) => session.ephemerals, cell: (session) => (session.ephemerals ? { text: count(session.ephemerals), opens: true, title: 'Show them' } : { text: '0', tone: 'quiet' }) },
    { name: 'Renewed', kind: 'number', value: (session) => session.renewed, cell: (session) => (session.renewed === null ? unknown : { text: `${time(session.renewed)} ago`, tone: session.renewed > session.timeout / 2 ? 'warn strong' : '' }) },
    { name: 'Timeout', kind: 'number', value: (session) => session.timeout, cell: (session) => ({ text: time(session.timeout), tone: 'quiet' }) },
    { name: 'Age', kind: 'number', value: (session) => session.age, cell: (session) => ({ text: time(session.age), tone: 'quiet' }) },
    { name: 'Watches', kind: 'number', value: (session) => session.watches, cell: (session) => ({ text: count(session.watches), tone: 'quiet' }) },
    { name: 'Session', kind: 'mono half', value: (session) => session.id, cell: (session) => ({ text: session.id, opens: true }) },
  ],
  more(session, cell) {
    const draw = () => {
      const found = ephemerals.get(session.id);
      const list = !found ? h('p', { class: 'quiet' }, 'reading') : found.error ? h('p', { class: 'bad' }, found.error)
        : found.ephemerals.length ? h('ul', { class: 'paths' }, ...found.ephemerals.map((path) => h('li', {}, h('a', { href: linkTo(path) }, path)))) : h('p', { class: 'quiet' }, 'It has no ephemerals that may be read here.');
      const rest = found && found.count > found.ephemerals?.length ? h('p', { class: 'quiet' }, `${count(found.ephemerals.length)} of ${count(found.count)} are shown.`) : '';
      detail(cell, [list, rest], writable ? [['Expire it', () => expireSession(session), 'danger']] : []);
    };
    draw();
    read(`/sessions/${session.id}`).catch((error) => ({ error: error.message })).then((found) => {
      ephemerals.set(session.id, found);
      if (!cell.contains(document.activeElement)) draw();
    });
  },
});

for (const [id, table] of [['lock-filter', lockTable], ['session-filter', sessionTable]]) $(id).addEventListener('input', () => table.filter($(id).value));
$('idle').addEventListener('change', () => showLocks());

async function showLocks() {
  try {
    const [all, { sessions }] = await Promise.all([read('/locks'), read('/sessions')]);
    holders = new Map(sessions.map((session) => [session.id, holder(session)]));
    const takers = all.filter(idle);
    const found = $('idle').checked ? all : all.filter((of) => !idle(of));
    lockTable.fill(found);
    const waiting = found.filter((of) => of.waiters.length && !idle(of)).length;
    $('lock-count').textContent = found.length ? `${count(found.length)}, ${count(waiting)} with waiters` : 'Nobody holds or waits for anything.';
    $('idle-label').hidden = !takers.length;
    $('idle-count').textContent = `${count(takers.length)} empty queues with takers`;
  } catch (error) { $('lock-count').textContent = visible(error.message); }
}

async function showSessions() {
  try {
    const { sessions } = await read('/sessions');
    sessionTable.fill(sessions);
    $('session-count').textContent = `${count(sessions.length)} in the cluster`;
  } catch (error) { $('session-count').textContent = visible(error.message); }
}

// Shows one session, as a link to it asks.
function openSession(id) {
  $('session-filter').value = id;
  if (id) sessionTable.opened.add(id);
  sessionTable.filter(id);
}
