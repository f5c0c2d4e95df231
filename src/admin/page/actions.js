// What is changed: each action asks first, and names what happens.

function told(text, tone = 'good') {
  const element = $('told');
  element.className = tone;
  element.textContent = visible(text);
  element.hidden = false;
  clearTimeout(told.timer);
  told.timer = setTimeout(() => { element.hidden = true; }, 8000);
}

// Asks a question; resolves to whether the answer is yes.
function question(title, lines, yes) {
  const dialog = $('question');
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); resolve(answer); };
    const cancel = h('button', { onclick: () => close(false) }, 'Cancel');
    dialog.replaceChildren(h('h2', { id: 'question-title' }, title), ...lines.map((line) => h('p', {}, line)),
      h('div', { class: 'bar' }, h('button', { class: 'danger', onclick: () => close(true) }, yes), cancel));
    dialog.oncancel = () => resolve(false);
    dialog.showModal();
    cancel.focus();
  });
}

async function act(done, path, options) {
  try {
    await ask(path, options);
    told(done);
  } catch (error) { told(error.message, 'bad'); }
}

async function moveLead(address) {
  const yes = await question(`Let ${address} lead?`, ['The present leader hands over. Writes wait for a moment, and none fails. Sessions, locks and elections stay as they are.'], 'Move the lead');
  if (yes) await act(`${address} leads.`, `/leader?to=${encodeURIComponent(address)}`, { method: 'POST' });
}

async function removeMember(address) {
  const yes = await question(`Remove ${address} from the cluster?`, ['Only a dead member can be removed. Its vote goes to a learner, if one has caught up; otherwise there is one voter less.', 'If it starts again with its old data it stops. It must then join as a new member.'], 'Remove the member');
  if (yes) await act(`${address} is removed.`, `/members/${encodeURIComponent(address)}`, { method: 'DELETE' });
}

async function expireSession(session) {
  const yes = await question(`End the session ${session.id}?`, [`Its holder is ${holder(session)}.`, `Its ${count(session.ephemerals)} ephemerals are deleted, and what it holds (locks, leases, leaderships) goes to the next in line. Its holder may still be at work.`], 'Expire the session');
  if (yes) await act(`The session ${session.id} is over.`, `/sessions/${session.id}`, { method: 'DELETE' });
}

async function changeTimer(path, what, name) {
  const tells = { pause: 'It does not fire until it is resumed. A fire that runs goes on.', resume: 'It fires again. What it has missed is up to its setting.', fire: 'It fires once more, beside its own times, even if it is paused.' };
  const yes = await question(`${name}: ${path}?`, [tells[what]], name);
  if (!yes) return;
  await act(`${name}: ${path}.`, `/timers${encoded(path)}?do=${what}`, { method: 'POST' });
  // The row that is in use stays as it is.
  document.activeElement?.blur();
  await showLocks();
}

// The request needs the token, so the file comes by a script.
async function downloadBackup() {
  const yes = await question('Download a backup?', ['It has all data and the passwords of sessions, whatever access lists say. Keep it as you keep the token.'], 'Download');
  if (!yes) return;
  try {
    const response = await ask('/backup');
    const file = URL.createObjectURL(await response.blob());
    h('a', { href: file, download: `quorate-${response.headers.get('Quorate-Zxid')}.backup` }).click();
    setTimeout(() => URL.revokeObjectURL(file), 60000);
    told(`A backup up to zxid ${response.headers.get('Quorate-Zxid')}.`);
  } catch (error) { told(error.message, 'bad'); }
}

if (writable && body.token === 'yes') {
  $('actions').append(h('button', { class: 'act', onclick: downloadBackup }, 'Download a backup'));
}
