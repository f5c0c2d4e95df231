// The connection, and the views.

const RED = 8000; // Without an event for so long, the connection is taken for lost.

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
  document.body.dataset.link = 'lost';
  banner(seen ? `This member does not answer. What you see is as of ${clock(lastReceived)}, ${time(Date.now() - lastReceived)} ago; the page connects again by itself.` : 'This member does not answer yet. The page connects by itself.');
  if (seen) elsewhere();
}

function live() {
  link('live', 'live');
  if (document.body.dataset.link === 'lost') {
    document.body.dataset.link = 'live';
    $('elsewhere').hidden = true;
  }
}

// The pages of other members, as these have reported them.
function elsewhere() {
  const others = [...pages].filter(([, { address }]) => address !== lastStatus?.address).slice(0, 12);
  const parts = others.flatMap(([id], at) => [at ? ', ' : 'Pages of other members: ', page(id)]);
  $('elsewhere').replaceChildren(...(parts.length ? parts : ['No other member has reported a page.']));
  $('elsewhere').hidden = false;
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
    try { path = linkedPath(hash); } catch { /* Not one of ours. */ }
    nodes.open(path);
  }
  if (view === 'sessions') openSession(hash.slice('#/sessions/'.length));
  refresh();
}

async function refresh() {
  if (!seen || document.hidden) return;
  if (view === 'locks') await showLocks();
  if (view === 'sessions') await showSessions();
}

window.addEventListener('hashchange', () => { if (seen) select(location.hash); });
for (const name of views) {
  const tab = $(`tab-${name}`);
  tab.addEventListener('click', () => { location.hash = name === 'tree' ? linkTo(nodes.path) : `/${name}`; });
  tab.addEventListener('keydown', (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = views[(views.indexOf(name) + by + views.length) % views.length];
    $(`tab-${next}`).click();
    $(`tab-${next}`).focus();
  });
}
// A list that is being read is not read again.
let reading = false;
setInterval(async () => {
  if (reading || $('link').dataset.state !== 'live') return;
  reading = true;
  try { await refresh(); } finally { reading = false; }
}, 2000);

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
