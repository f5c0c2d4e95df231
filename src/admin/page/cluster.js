// The cluster's view: four tiles, the members, the last hour, and what has happened.

// From which figures on a member needs attention: [look at it, alarm].
const LIMITS = { lag: [100, 10000], stale: [3000, 10000], disk: [100000, 500000], certificate: 7 * 86400 };
const HISTORY_SPAN = 3600000;

const tone = (value, [warn, bad]) => (value === null || value === undefined ? 'quiet' : value >= bad ? 'bad strong' : value >= warn ? 'warn strong' : value === 0 ? 'quiet' : '');

// A member's colour follows from its address, so that it is the same on every page, however the rows are sorted. That of
// another member is avoided while there are enough.
const COLOURS = 6;
const marks = new Map();
function mark(address) {
  if (!marks.has(address)) {
    const taken = new Set(marks.values());
    let colour = [...address].reduce((sum, letter) => sum + letter.codePointAt(0), 0) % COLOURS;
    for (let tries = 0; tries < COLOURS && taken.has(colour); tries += 1) colour = (colour + 1) % COLOURS;
    marks.set(address, colour);
  }
  return `m${marks.get(address)}`;
}

let leaderNow = null;
let versionMost = 0;
let silentNow = new Set();

// What is wrong with a member, the worst first. A cause is named once: not that the others cannot reach a silent member,
// nor at each member that the cluster refuses writes, which the banner says.
function alarms(member) {
  const { state } = member;
  const last = member.last_report;
  if (!state) return [[last ? `does not report; its last report, ${time(last.age)} ago: ${last.text}` : 'does not report', 'bad']];
  const found = [];
  if (state.disk_waits) found.push([`its disk has not answered for ${time(state.disk_waits)}`, 'bad']);
  if (state.certificate?.expires_in < LIMITS.certificate) found.push([state.certificate.expires_in > 0 ? `a certificate expires in ${time(state.certificate.expires_in * 1000)}: ${state.certificate.name}` : `a certificate has expired: ${state.certificate.name}`, state.certificate.expires_in > 0 ? 'warn' : 'bad']);
  if (state.former_directories) found.push([`keeps former data, ${count(state.former_directories)} director${state.former_directories === 1 ? 'y' : 'ies'}`, 'warn']);
  if (state.checkpoint_error) found.push([`it cannot write a checkpoint: ${state.checkpoint_error}`, 'bad']);
  if (state.disk_low) found.push([`its disk is nearly full: ${bytes(state.disk_free_bytes)} of room`, 'bad']);
  if (state.not_ready) found.push([`not ready: ${state.not_ready.text ?? ''}`, 'warn']);
  const unreachable = state.unreachable.map((other) => other.address).filter((address) => !silentNow.has(address));
  if (unreachable.length) found.push([`cannot reach ${unreachable.join(', ')}`, 'warn']);
  if (state.disk_sync && state.disk_sync.p99_us >= LIMITS.disk[0]) found.push(['slow disk', state.disk_sync.p99_us >= LIMITS.disk[1] ? 'bad' : 'warn']);
  if (member.lag >= LIMITS.lag[0]) found.push([`lags by ${count(member.lag)} entries`, member.lag >= LIMITS.lag[1] ? 'bad' : 'warn']);
  if (state.version < versionMost) found.push([`version ${state.version}, others have ${versionMost}`, 'warn']);
  return found;
}

const role = (member) => (member.address === leaderNow ? 'leader' : member.role === 'leader' ? 'led last' : member.role);
const alarmed = (member) => Math.max(0, ...alarms(member).map(([, kind]) => (kind === 'bad' ? 2 : 1)));

const memberTable = new Table({
  element: $('members'),
  key: (member) => member.id,
  words: (member) => `${member.address} ${member.zone} ${role(member)} ${alarms(member).map(([text]) => text).join(' ')}`,
  mark: (member) => `member${member.address === leaderNow ? ' leads' : ''}${member.is_silent ? ' silent' : ''}`,
  columns: [
    { name: 'Member', value: (member) => member.address, cell: (member) => {
      const [worst, ...others] = alarms(member);
      return { text: member.address, opens: true, tone: 'address', mark: mark(member.address), note: worst ? `${worst[0]}${others.length ? `; ${others.map(([text]) => text).join('; ')}` : ''}` : '', noteTone: worst?.[1] };
    } },
    { name: 'Role', value: role, cell: (member) => ({ text: role(member), tone: role(member) === 'leader' ? 'role' : 'quiet' }) },
    { name: 'Lag', kind: 'number', value: (member) => member.lag, cell: (member) => ({ text: count(member.lag), tone: tone(member.lag, LIMITS.lag), title: 'entries that are committed and not applied yet' }) },
    { name: 'Disk p99', kind: 'number', value: (member) => member.state?.disk_sync?.p99_us, cell: ({ state }) => ({ text: state?.disk_sync ? time(state.disk_sync.p99_us / 1000) : unknown, tone: tone(state?.disk_sync?.p99_us, LIMITS.disk), title: 'one of a hundred writes to the log took longer, in the last minute' }) },
    { name: 'Stale by', kind: 'number', value: (member) => member.state?.stale_by, cell: ({ state }) => ({ text: time(state?.stale_by), tone: tone(state?.stale_by, LIMITS.stale) === '' ? 'quiet' : tone(state?.stale_by, LIMITS.stale) }) },
    { name: 'Room', kind: 'number', value: (member) => member.state?.disk_free_bytes, cell: ({ state }) => ({ text: bytes(state?.disk_free_bytes), tone: state?.disk_low ? 'bad strong' : 'quiet' }) },
    { name: 'Version', kind: 'number', value: (member) => member.state?.version, cell: ({ state }) => ({ text: count(state?.version), tone: state && state.version < versionMost ? 'warn strong' : 'quiet' }) },
    { name: 'Zone', value: (member) => member.zone, cell: (member) => ({ text: member.zone || unknown, tone: 'quiet' }) },
  ],
  more(member, cell) {
    const { state, address } = member;
    const parts = [];
    if (state) {
      parts.push(facts([
        ['commits', latency(state.commit)], ['disk syncs', latency(state.disk_sync)],
        ['sessions', count(state.sessions)], ['clients', count(state.clients)], ['watches', count(state.watches)],
        ['log', bytes(state.log_bytes)],
        ['checkpoint', state.checkpoint_bytes ? `${bytes(state.checkpoint_bytes)}, ${time(state.checkpoint_age)} ago` : 'none yet'],
        ['not on disk', `${count(state.last_index - state.durable_index)} entries`],
        ['zxid', count(state.zxid)], ['term', count(state.term)], ['id', member.id],
      ]));
      if (state.admin && address !== lastStatus?.address) parts.push(h('p', {}, 'its page: ', page(member.id)));
      for (const other of state.unreachable) parts.push(h('p', { class: 'warn' }, `cannot reach ${other.address}: ${other.reason.text ?? ''}`));
      for (const text of state.duplicates) parts.push(h('p', { class: 'bad' }, text));
    } else parts.push(h('p', { class: 'quiet' }, `id ${member.id}`));
    const actions = [];
    if (writable && state && role(member) === 'voter') actions.push(['Let it lead', () => moveLead(address)]);
    if (writable && member.is_silent) actions.push(['Remove it', () => removeMember(address), 'danger']);
    detail(cell, parts, actions);
  },
});
// Those that need attention first, unless the reader has another order.
const worstFirst = { kind: 'number', value: (member) => alarmed(member) };
memberTable.order = worstFirst;
$('member-filter').addEventListener('input', () => memberTable.filter($('member-filter').value));

function tile(name) {
  const value = h('div', { class: 'value' }, unknown);
  const note = h('div', { class: 'note' });
  $('tiles').append(h('div', { class: 'card tile' }, h('div', { class: 'name' }, name), value, note));
  return { value, note };
}

const tiles = { quorum: tile('Quorum'), leader: tile('Leader'), writes: tile('Writes each second'), sync: tile('Sync, as measured here') };
tiles.leader.value.classList.add('small');

function quorum(availability) {
  const [kind, detail] = Object.entries(availability)[0];
  const name = { healthy: detail.spare ? 'Healthy' : 'Working', at_risk: 'At risk', writes_refused: 'No writes', no_quorum: 'None' }[kind] ?? kind;
  const reason = detail.reason?.text;
  const { value, note } = tiles.quorum;
  value.textContent = name;
  const tones = { healthy: 'good', at_risk: 'warn' };
  value.className = `value ${tones[kind] ?? 'bad'}`;
  note.textContent = kind !== 'healthy' ? reason : detail.spare ? `${detail.spare} more may be lost` : 'no voter may be lost';
  return { kind, reason };
}

let before = null;
let lastStatus = null;

// The pages of all members, as these last reported them, by their ids. A silent member keeps the one it had.
const pages = new Map();

function notePages(members) {
  for (const id of pages.keys()) if (!members.some((member) => member.id === id)) pages.delete(id);
  for (const { id, address, state } of members) {
    if (state?.admin) pages.set(id, { address, admin: state.admin });
    else if (state) pages.delete(id);
  }
}

// A link to a member's page; only its name where this browser cannot reach it: an endpoint on the loopback is for its own host.
function page(id) {
  const { address, admin } = pages.get(id);
  const host = (of) => of.slice(0, of.lastIndexOf(':'));
  const isLocal = (name) => name === 'localhost' || name === '[::1]' || name.startsWith('127.');
  const isHere = isLocal(location.hostname) && host(address) === host(lastStatus?.address ?? '');
  if (isLocal(host(admin)) && !isHere) return `${admin} on the host of ${address}`;
  return h('a', { href: `http://${admin}/` }, admin);
}

function show(sample) {
  const { status, reports, metrics } = sample;
  lastStatus = status;
  leaderNow = reports ? reports.leader : status.leader;
  if (!seen) {
    seen = true;
    $('app').hidden = false;
    select(location.hash);
  }
  const isFirst = $('link').dataset.state !== 'live';
  live();
  if (isFirst) readHistory();
  $('where').textContent = `seen from ${status.address || 'a client'}`;
  document.title = `quorate ${status.address}`;
  const state = quorum(status.availability);
  if (status.stopped) banner(`This instance has stopped: ${status.stopped}`);
  else if (state.kind === 'no_quorum') banner(`There is no quorum: nothing can be written. ${state.reason}`);
  else if (state.kind === 'writes_refused') banner(`Writes are refused: ${state.reason}`);
  else if (state.kind === 'at_risk') banner(`At risk: ${state.reason}`, 'warn');
  else banner(null);

  const leader = leaderNow;
  const all = reports?.members ?? [];
  const led = all.find((member) => member.address === leader)?.state;
  tiles.leader.value.textContent = leader ?? 'none';
  tiles.leader.note.textContent = led ? `term ${led.term}; ${count(led.znodes)} znodes, ${count(status.sessions ?? null)} sessions` : 'no member leads now';
  const zxid = led ? led.zxid : status.zxid;
  const rate = before && sample.time > before.time && zxid >= before.zxid ? Math.round((zxid - before.zxid) * 1000 / (sample.time - before.time)) : null;
  tiles.writes.value.textContent = count(rate);
  tiles.writes.note.textContent = `zxid ${count(zxid)}; ${count(metrics.requests_refused)} refused here`;
  const sync = sample.sync_us === null ? null : sample.sync_us / 1000;
  tiles.sync.value.textContent = sync === null ? 'no answer' : time(sync);
  tiles.sync.note.textContent = 'to the leader and a majority, and back';

  if (reports) {
    notePages(all);
    versionMost = Math.max(0, ...all.map((member) => member.state?.version ?? 0));
    silentNow = new Set(all.filter((member) => member.is_silent).map((member) => member.address));
    all.forEach((member) => mark(member.address));
    memberTable.fill(all);
    $('member-filter').hidden = all.length <= 8;
    const need = all.filter((member) => !member.is_silent && alarmed(member) > 0).length;
    const attention = [silentNow.size && `${count(silentNow.size)} silent`, need && `${count(need)} to look at`].filter(Boolean);
    $('member-count').textContent = `${count(all.length)}; ${attention.join(', ') || 'all well'}`;
  }
  story(sample, leader, all);
  before = { time: sample.time, zxid, leader, availability: state.kind, silent: silentNow, addresses: new Set(all.map((member) => member.address)) };
}

// ---- What has happened while the page was open ----

function addLine(text, kind = '', at = Date.now()) {
  const log = $('story');
  log.prepend(h('li', {}, h('time', {}, clock(at)), h('span', { class: `path ${kind}` }, text)));
  while (log.children.length > 300) log.lastChild.remove();
}

function story(sample, leader, all) {
  const at = sample.time;
  if (before === null) {
    addLine(leader ? `${leader} leads` : 'nobody leads', leader ? '' : 'bad', at);
    return;
  }
  if (leader !== before.leader) addLine(leader ? `${leader} leads now${before.leader ? `; before, ${before.leader} did` : ''}` : `nobody leads; before, ${before.leader} did`, leader ? 'good' : 'bad', at);
  for (const { address, is_silent } of all) {
    if (!before.addresses.has(address)) addLine(`${address} is a member now`, 'good', at);
    else if (is_silent && !before.silent.has(address)) addLine(`${address} is silent`, 'bad', at);
    else if (!is_silent && before.silent.has(address)) addLine(`${address} reports again`, 'good', at);
  }
  for (const address of before.addresses) {
    if (all.length && !all.some((member) => member.address === address)) addLine(`${address} is no member any more`, 'warn', at);
  }
  const none = tiles.quorum.value.textContent === 'None';
  if (none && before.availability !== 'no_quorum') addLine('the quorum is lost', 'bad', at);
  if (!none && before.availability === 'no_quorum') addLine('there is a quorum again', 'good', at);
}

// ---- The last hour, as the member has kept it ----

const past = { time: [], leader: [], zxid: [], commit_p99_us: [], disk_sync_p99_us: [], stale_by_ms: [], sessions: [], znodes: [] };
const us = (value) => time(value === null || value === undefined ? null : value / 1000);
const plots = [
  ['Writes each second', count, () => past.zxid.map((zxid, at) => (at && zxid !== null && past.zxid[at - 1] !== null && zxid >= past.zxid[at - 1] ? Math.round((zxid - past.zxid[at - 1]) * 1000 / Math.max(1, past.time[at] - past.time[at - 1])) : null))],
  ['Disk p99', us, () => past.disk_sync_p99_us],
  ['Commit p99, while it leads', us, () => past.commit_p99_us],
  ['Stale by', time, () => past.stale_by_ms],
  ['Sessions', count, () => past.sessions],
  ['Znodes', count, () => past.znodes],
].map(([name, show, values]) => ({ plot: new Plot(name, show), values }));
$('plots').append(...plots.map(({ plot }) => plot.element));

async function readHistory() {
  if (!seen || $('link').dataset.state !== 'live' || document.hidden) return;
  try {
    const more = await read(`/history?after=${past.time[past.time.length - 1] ?? 0}`);
    for (const name of Object.keys(past)) {
      past[name].push(...more[name]);
      past[name].splice(0, past[name].length - more.samples_max);
    }
    $('past-of').textContent = `The last hour of ${more.address || 'this instance'}`;
    if (past.time.length) drawHistory();
  } catch { /* The link shows it. */ }
}

function drawHistory() {
  for (const { plot, values } of plots) plot.draw(past.time, values());
  const end = past.time[past.time.length - 1];
  const begin = Math.max(past.time[0], end - HISTORY_SPAN);
  const parts = [];
  past.time.forEach((at, index) => {
    const until = past.time[index + 1] ?? at;
    const last = parts[parts.length - 1];
    if (last && last.leader === past.leader[index]) last.until = until;
    else parts.push({ leader: past.leader[index], from: at, until });
  });
  const span = Math.max(1, end - begin);
  $('band').replaceChildren(...parts.map(({ leader, from, until }) => {
    const element = h('span', { class: leader ? mark(leader) : '', title: `${clock(from)} ${leader ?? 'nobody'}` });
    element.style.width = `${((until - from) / span) * 100}%`;
    return element;
  }));
  $('band-from').textContent = clock(begin).slice(0, 5);
  $('band').setAttribute('aria-label', `Since ${clock(begin)}: ${parts.map(({ leader, from }) => `from ${clock(from)} ${leader ?? 'nobody'}`).join(', ')}`);
  const led = [...new Set(parts.map(({ leader }) => leader))].slice(0, 8);
  $('legend').replaceChildren(...led.map((leader) => h('span', {}, h('i', { class: `mark ${leader ? mark(leader) : ''}` }), ` ${leader ?? 'nobody'}`)));
}

setInterval(readHistory, 5000);

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
    kind === 'gap' ? h('span', { class: 'path quiet' }, 'more changes than could be shown') : h('a', { class: 'path', href: linkTo(path) }, path))));
}

$('filter').addEventListener('input', showChanges);
$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', paused);
  $('pause').textContent = paused ? 'Paused' : 'Pause';
  if (!paused) showChanges();
});
