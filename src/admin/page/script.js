// The connection, the cluster's view, locks and sessions.

const body = document.body.dataset;
const writable = body.writable === 'yes';
const RED = 8000; // Without an event for so long, the connection is taken for lost.

function token() {
  try { return sessionStorage.getItem('quorate-token'); } catch { return null; }
}

// Sends a request to the endpoint. An error response is thrown, with its status.
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (body.token === 'yes') headers.Authorization = `Bearer ${token()}`;
  const response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'omit' });
  if (response.ok) return response;
  let reason = `${response.status} ${response.statusText}`;
  try { reason = (await response.json()).error; } catch { /* It had no reason. */ }
  if (response.status === 401) logIn('This token is not the endpoint’s.');
  throw Object.assign(new Error(reason), { status: response.status });
}

const read = async (path) => (await ask(path)).json();

// ---- The token ----

function logIn(reason) {
  try { sessionStorage.removeItem('quorate-token'); } catch { /* There was none. */ }
  $('login-error').textContent = reason;
  $('app').hidden = true;
  $('login').hidden = false;
  link('waits', 'not logged in');
  banner(null);
  $('token').focus();
}

$('login').addEventListener('submit', (event) => {
  event.preventDefault();
  try { sessionStorage.setItem('quorate-token', $('token').value.trim()); } catch { /* Kept nowhere. */ }
  $('token').value = '';
  start();
});

// ---- Events ----

let listening = null;
let lastReceived = 0;
let seen = false;

function link(state, text) {
  const element = $('link');
  element.dataset.state = state;
  if (element.textContent !== text) element.textContent = text;
}

function banner(text, kind = 'bad') {
  const element = $('banner');
  element.hidden = text === null;
  element.dataset.kind = kind;
  if (text !== null && element.textContent !== text) element.textContent = text;
}

// Reads events as they arrive. (An EventSource cannot send a token.)
async function listen() {
  const control = new AbortController();
  listening = control;
  try {
    const response = await ask('/events', { signal: control.signal });
    lastReceived = Date.now();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      lastReceived = Date.now();
      text += value;
      const events = text.split('\n\n');
      text = events.pop();
      events.forEach(take);
    }
  } catch (error) {
    if (error.status === 401) return;
  }
  if (listening !== control) return;
  listening = null;
  lost();
  setTimeout(() => { if (listening === null && $('login').hidden) listen(); }, 1500);
}

function lost() {
  if (seen && $('link').dataset.state === 'live') addLine('this page has lost its member, and connects again', 'bad');
  link('lost', 'no connection; trying again');
  banner(seen ? `This member does not answer. What you see is as of ${clock(lastReceived)}; the page connects again by itself.` : 'This member does not answer yet. The page connects by itself.');
}

setInterval(() => {
  if (listening && lastReceived && Date.now() - lastReceived > RED && $('link').dataset.state === 'live') {
    lost();
    listening.abort();
  }
}, 1000);

function take(event) {
  const lines = event.split('\n');
  const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join('\n');
  const [name, data] = [field('event'), field('data')];
  if (data === '') return;
  const value = JSON.parse(data);
  if (name === 'state') show(value);
  if (name === 'changes') changed(value);
  if (name === 'missed') changed([{ kind: 'gap', path: '/', zxid: 0 }]);
}

// ---- The cluster ----

// The figures of a member for plots and lists. Only this function knows the form of a report.
function figures(member) {
  const { state } = member;
  if (!state) return { lag: null, stale: null, sync: null, list: [] };
  return {
    lag: member.lag,
    stale: state.stale_by,
    sync: state.disk_sync ? state.disk_sync.p99_us / 1000 : null,
    list: [
      ['zxid', count(state.zxid)],
      ['sessions', count(state.sessions)],
      ['clients', count(state.clients)],
      ['watches', count(state.watches)],
      ['log', bytes(state.log_bytes)],
      ['checkpoint', state.checkpoint_bytes ? `${bytes(state.checkpoint_bytes)}, ${time(state.checkpoint_age)} ago` : 'none yet'],
      ['commits', latency(state.commit)],
      ['disk syncs', latency(state.disk_sync)],
      ['room on disk', h('span', { class: state.disk_low ? 'bad' : '' }, state.disk_low ? `${bytes(state.disk_free_bytes)}, nearly full` : bytes(state.disk_free_bytes))],
      ['not on disk', `${count(state.last_index - state.durable_index)} entries`],
      ['term', `${state.term}, version ${state.version}`],
    ],
  };
}

const cards = new Map();
const marks = new Map();
const led = [];
let before = null;

const mark = (address) => {
  if (!marks.has(address)) marks.set(address, `m${marks.size % 6}`);
  return marks.get(address);
};

function tile(name, show) {
  const value = h('div', { class: 'value' }, unknown);
  const note = h('div', { class: 'note' });
  const spark = show ? new Spark(name, show) : null;
  const element = h('div', { class: `card tile${spark ? ' plotted' : ''}` }, h('div', { class: 'name' }, name), value, spark ? spark.element : null, note);
  $('tiles').append(element);
  return { value, note, spark };
}

const tiles = {
  quorum: tile('Quorum'),
  leader: tile('Leader'),
  writes: tile('Writes each second', (value) => count(value)),
  sync: tile('Sync, as measured here', (value) => time(value)),
};
tiles.leader.value.classList.add('small');

function quorum(availability) {
  const [kind, detail] = Object.entries(availability)[0];
  const name = { healthy: detail.spare ? 'Healthy' : 'Working', at_risk: 'At risk', writes_refused: 'No writes', no_quorum: 'None' }[kind] ?? kind;
  const tone = { healthy: 'good', at_risk: 'warn' }[kind] ?? 'bad';
  const reason = detail.reason?.text;
  const { value, note } = tiles.quorum;
  value.textContent = name;
  value.className = `value ${tone}`;
  note.textContent = kind !== 'healthy' ? reason : detail.spare ? `${detail.spare} more may be lost` : 'no voter may be lost';
  return { kind, reason };
}

function show(sample) {
  if (!seen) {
    seen = true;
    $('app').hidden = false;
    select(location.hash);
  }
  const { status, reports, metrics } = sample;
  const leader = reports ? reports.leader : status.leader;
  link('live', 'live');
  $('where').textContent = `seen from ${status.address || 'a client'}`;
  document.title = `quorate ${status.address}`;
  const state = quorum(status.availability);
  if (status.stopped) banner(`This instance has stopped: ${status.stopped}`);
  else if (state.kind === 'no_quorum') banner(`There is no quorum: nothing can be written. ${state.reason}`);
  else if (state.kind === 'writes_refused') banner(`Writes are refused: ${state.reason}`);
  else if (state.kind === 'at_risk') banner(`At risk: ${state.reason}`, 'warn');
  else banner(null);

  const led = reports?.members.find((member) => member.address === leader)?.state;
  tiles.leader.value.textContent = leader ?? 'none';
  tiles.leader.note.textContent = led ? `term ${led.term}; ${count(led.znodes)} znodes, ${count(status.sessions ?? null)} sessions` : 'no member leads now';

  const zxid = led ? led.zxid : status.zxid;
  const rate = before && sample.time > before.time && zxid >= before.zxid ? Math.round((zxid - before.zxid) * 1000 / (sample.time - before.time)) : null;
  tiles.writes.spark.push(rate);
  tiles.writes.value.textContent = count(rate);
  tiles.writes.note.textContent = `zxid ${count(zxid)}; ${count(metrics.requests_refused)} refused here`;
  const sync = sample.sync_us === null ? null : sample.sync_us / 1000;
  tiles.sync.spark.push(sync);
  tiles.sync.value.textContent = sync === null ? 'no answer' : time(sync);
  tiles.sync.note.textContent = 'to the leader and a majority, and back';

  if (reports) members(reports.members, leader);
  story(sample, leader, reports ? reports.members : []);
  before = { time: sample.time, zxid, leader, availability: state.kind, silent: new Set((reports?.members ?? []).filter((member) => member.is_silent).map((member) => member.address)), addresses: new Set((reports?.members ?? []).map((member) => member.address)) };
}

function members(all, leader) {
  for (const member of all) {
    if (!cards.has(member.id)) cards.set(member.id, card(member));
    const { element, role, zone, lag, stale, sync, list } = cards.get(member.id);
    const leads = member.address === leader;
    element.className = `card member ${mark(member.address)}${leads ? ' leads' : ''}${member.is_silent ? ' silent' : ''}`;
    role.textContent = member.is_silent ? `${member.role}, silent` : leads ? 'leader' : member.role === 'leader' ? 'led last' : member.role;
    zone.textContent = visible([member.zone && `zone ${member.zone}`, member.state?.unreachable.length ? `cannot reach ${member.state.unreachable.map((other) => other.address).join(', ')}` : '', `id ${member.id}`].filter(Boolean).join('; '));
    const of = figures(member);
    lag.push(of.lag);
    stale.push(of.stale);
    sync.push(of.sync);
    if (of.list.length) list.replaceChildren(facts(of.list));
    else list.replaceChildren(h('p', { class: 'bad' }, 'It does not report.'));
  }
  // In the order of their addresses, as they came.
  const order = all.map((member) => cards.get(member.id).element);
  if (order.some((element, at) => $('members').children[at] !== element)) $('members').append(...order);
  for (const [id, { element }] of cards) {
    if (all.some((member) => member.id === id)) continue;
    element.remove();
    cards.delete(id);
  }
}

function card(member) {
  const role = h('span', { class: 'role' });
  const zone = h('p', { class: 'quiet note' });
  const lag = plot('Lag', count);
  const stale = plot('Stale by', time);
  const sync = plot('Disk p99', time);
  const list = h('div');
  const element = h('article', { class: 'card member', 'aria-label': `Member ${member.address}` },
    h('header', {}, h('i', { class: 'mark' }), h('h3', {}, member.address), role), zone,
    h('div', { class: 'plots' }, lag.element, stale.element, sync.element), list);
  return { element, role, zone, lag, stale, sync, list };
}

function addLine(text, tone = '', at = Date.now()) {
  const log = $('story');
  log.prepend(h('li', {}, h('time', {}, clock(at)), h('span', { class: `path ${tone}` }, text)));
  while (log.children.length > 300) log.lastChild.remove();
}

// Shows the changes since the last sample as text, and the leaders over time as a band.
function story(sample, leader, all) {
  const at = sample.time;
  if (before === null) {
    addLine(leader ? `${leader} leads` : 'nobody leads', leader ? '' : 'bad', at);
  } else {
    if (leader !== before.leader) addLine(leader ? `${leader} leads now${before.leader ? `; before, ${before.leader} did` : ''}` : `nobody leads; before, ${before.leader} did`, leader ? 'good' : 'bad', at);
    for (const { address, is_silent } of all) {
      if (!before.addresses.has(address)) addLine(`${address} is a member now`, 'good', at);
      else if (is_silent && !before.silent.has(address)) addLine(`${address} is silent`, 'bad', at);
      else if (!is_silent && before.silent.has(address)) addLine(`${address} reports again`, 'good', at);
    }
    for (const address of before.addresses) {
      if (all.length && !all.some((member) => member.address === address)) addLine(`${address} is no member any more`, 'warn', at);
    }
    if (tiles.quorum.value.textContent === 'None' && before.availability !== 'no_quorum') addLine('the quorum is lost', 'bad', at);
    if (before.availability === 'no_quorum' && tiles.quorum.value.textContent !== 'None') addLine('there is a quorum again', 'good', at);
  }
  const span = 300000;
  const last = led[led.length - 1];
  if (last && last.leader === leader) last.until = at;
  else led.push({ leader, from: last ? last.until : at, until: at });
  while (led.length && led[0].until < at - span) led.shift();
  const parts = [];
  let end = at - span;
  for (const { leader: who, from, until } of led) {
    const begin = Math.max(from, at - span);
    if (begin > end) parts.push(part(null, begin - end, span));
    parts.push(part(who, until - begin, span));
    end = until;
  }
  $('band').replaceChildren(...parts);
  $('band').setAttribute('aria-label', `In the last five minutes: ${led.map(({ leader: who, from }) => `from ${clock(from)} ${who ?? 'nobody'}`).join(', ')}`);
}

function part(who, length, span) {
  const element = h('span', { class: who ? mark(who) : '', title: who ?? '' });
  element.style.width = `${(length / span) * 100}%`;
  return element;
}

// ---- Changes ----

let paused = false;
const kept = [];
const words = { created: 'created', data_changed: 'set', deleted: 'deleted', gap: 'missed' };

function changed(events) {
  for (const event of events) {
    kept.unshift({ ...event, at: Date.now() });
    nodes.changed(event);
  }
  kept.length = Math.min(kept.length, 1000);
  // Keeps the place of users who read by keyboard.
  if (!paused && !$('changes').contains(document.activeElement)) showChanges();
}

function showChanges() {
  const filter = $('filter').value;
  const rows = kept.filter((event) => event.kind === 'gap' || event.path.startsWith(filter)).slice(0, 200);
  const tones = { created: 'good', deleted: 'bad', gap: 'warn' };
  $('changes').replaceChildren(...rows.map(({ at, kind, path, zxid }) => h('li', { title: `zxid ${zxid}` }, h('time', {}, clock(at)), h('span', { class: `what ${tones[kind] ?? ''}` }, words[kind] ?? kind),
    kind === 'gap' ? h('span', { class: 'path quiet' }, 'more changes than could be shown') : h('a', { class: 'path', href: `#/tree${encodeURI(path)}` }, path))));
}

$('filter').addEventListener('input', showChanges);
$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', paused);
  $('pause').textContent = paused ? 'Paused' : 'Pause';
  if (!paused) showChanges();
});

// ---- Locks and sessions: read again while they are looked at ----

// Who holds a session: a member, a client of its gateway (whose address has a port), or an instance without a replica.
function holder({ owner, owner_id: id, served_by: member, from }) {
  const port = /^(\d+\.){3}\d+:|^\[/;
  if (owner) return from && port.test(from) ? `${from} through ${owner}` : owner;
  const client = from ?? 'a client';
  if (member) return `${client} of ${member}`;
  return from ?? id;
}

async function showLocks() {
  const list = $('lock-list');
  try {
    const [all, { sessions }] = await Promise.all([read('/locks'), read('/sessions')]);
    const holders = new Map(sessions.map((session) => [session.id, holder(session)]));
    // Takers of an empty queue wait for items, and not for each other.
    const idle = (of) => of.recipe === 'queue of takers' && !of.holders.length;
    const found = all.filter((of) => !idle(of)).sort((a, b) => b.waiters.length - a.waiters.length);
    const takers = all.filter(idle);
    const one = (word) => (of) => h('li', {}, h('span', { class: word }, word), h('span', { title: of.session ?? 'no session' }, holders.get(of.session) ?? of.session ?? 'no session'), h('span', { class: 'quiet' }, `${of.kind}, ${time(Math.max(0, Date.now() - of.since))}`), of.label ? h('span', {}) : null, of.label ? h('span', { class: 'quiet' }, of.label) : null);
    list.replaceChildren(...found.map((of) => h('article', { class: 'card lock' }, h('h3', {}, h('a', { href: `#/tree${encodeURI(of.path)}` }, of.path)), h('p', { class: 'quiet' }, `${of.recipe}; ${of.waiters.length} wait`), h('ol', {}, ...of.holders.map(one('holds')), ...of.waiters.map(one('waits'))))));
    if (!found.length) list.replaceChildren(h('p', { class: 'quiet' }, 'Nobody holds or waits for anything.'));
    if (takers.length) list.append(h('p', { class: 'quiet' }, `${count(takers.reduce((sum, of) => sum + of.waiters.length, 0))} wait for items of ${count(takers.length)} empty queues.`));
  } catch (error) {
    list.replaceChildren(h('p', { class: 'bad' }, error.message));
  }
}

async function showSessions() {
  try {
    const { sessions } = await read('/sessions');
    $('session-count').textContent = `${count(sessions.length)} in the cluster${sessions.length > 500 ? '; the first 500 are shown' : ''}`;
    const header = [['Session', ''], ['Held by', ''], ['Age', 'number'], ['Timeout', 'number'], ['Renewed', 'number'], ['Ephemerals', 'number'], ['Watches', 'number']];
    const rows = sessions.slice(0, 500).map((session) => h('tr', {},
      h('td', { class: 'mono' }, session.id),
      h('td', {}, holder(session)),
      h('td', { class: 'number' }, time(session.age)),
      h('td', { class: 'number' }, time(session.timeout)),
      h('td', { class: 'number' }, session.renewed === null ? unknown : `${time(session.renewed)} ago`),
      h('td', { class: 'number' }, count(session.ephemerals)),
      h('td', { class: 'number' }, count(session.watches))));
    $('session-table').replaceChildren(h('thead', {}, h('tr', {}, ...header.map(([name, kind]) => h('th', { class: kind, scope: 'col' }, name)))), h('tbody', {}, ...rows));
  } catch (error) {
    $('session-count').textContent = visible(error.message);
  }
}

// ---- Views ----

const views = ['cluster', 'tree', 'locks', 'sessions'];
let view = 'cluster';

function select(hash) {
  const name = hash.slice(2).split('/')[0];
  view = views.includes(name) ? name : 'cluster';
  for (const of of views) {
    $(of).hidden = of !== view;
    const tab = $(`tab-${of}`);
    tab.setAttribute('aria-selected', of === view);
    tab.tabIndex = of === view ? 0 : -1;
  }
  if (view === 'tree') {
    let path = '/';
    try { path = decodeURI(hash.slice('#/tree'.length)) || '/'; } catch { /* Not one of ours. */ }
    nodes.open(path);
  }
  refresh();
}

async function refresh() {
  if (!seen || document.hidden) return;
  if (view === 'locks' && !$('lock-list').contains(document.activeElement)) await showLocks();
  if (view === 'sessions') await showSessions();
}

window.addEventListener('hashchange', () => { if (seen) select(location.hash); });
for (const name of views) {
  const tab = $(`tab-${name}`);
  tab.addEventListener('click', () => { location.hash = name === 'tree' ? `/tree${encodeURI(nodes.path)}` : `/${name}`; });
  tab.addEventListener('keydown', (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = views[(views.indexOf(name) + by + views.length) % views.length];
    $(`tab-${next}`).click();
    $(`tab-${next}`).focus();
  });
}
setInterval(() => { if ($('link').dataset.state === 'live') refresh(); }, 2000);

function start() {
  $('login').hidden = true;
  if (body.token === 'yes' && !token()) {
    logIn('');
    return;
  }
  if (seen) $('app').hidden = false;
  link('waits', 'connecting');
  listening = null;
  listen();
}

start();
