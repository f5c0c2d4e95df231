// Requests to the endpoint.

const body = document.body.dataset;
const writable = body.writable === 'yes';

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

// Whether the endpoint has sent its state since the page was opened.
let seen = false;
