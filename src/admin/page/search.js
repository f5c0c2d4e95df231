// A search over all paths, made by the member.

async function search(text) {
  const list = $('found');
  list.hidden = text === '';
  if (text === '') return;
  $('found-count').textContent = 'searching';
  try {
    const { found, examined, cut } = await read(`/search?text=${encodeURIComponent(text)}`);
    if (text !== $('search-text').value.trim()) return;
    const why = { paths: `the first ${count(found.length)} are shown: search for more of the path`, work: `only the first ${count(examined)} znodes were read: this is not all` }[cut];
    $('found-count').textContent = why ?? `${count(found.length)} of ${count(examined)} znodes`;
    $('found-count').className = cut ? 'warn' : 'quiet';
    $('found-list').replaceChildren(...found.map(({ path }) => h('li', {}, h('a', { href: linkTo(path) }, path))));
  } catch (error) {
    $('found-count').className = 'bad';
    $('found-count').textContent = visible(error.message);
    $('found-list').replaceChildren();
  }
}

$('search').addEventListener('submit', (event) => {
  event.preventDefault();
  search($('search-text').value.trim());
});
$('search-text').addEventListener('input', () => { if ($('search-text').value === '') search(''); });
