// Follows a run: asks the server every second whether it has grown, and then changes what differs
// on the page. Figures are renewed in place, so that scroll position and choices stay.
const PAUSE = 1000, TRIES = 3; // milliseconds between questions; failures until it gives up
const KEPT = new Set(['open', 'class']); // attributes that the reader and the scripts here change

const label = element => element?.textContent.trim() ?? '';
const name = node => {
  if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeName;
  const parts = { FIGURE: 'h3', DETAILS: 'summary', A: null };
  if (!(node.nodeName in parts)) return `${node.nodeName}#${node.id}`;
  const spec = node.nodeName === 'FIGURE' && (figures.get(node)?.kind ?? JSON.parse(label(node.querySelector('script'))).kind);
  return `${node.nodeName}:${label(parts[node.nodeName] ? node.querySelector(parts[node.nodeName]) : node)}:${spec}`;
};

const patch = (now, next) => {
  if (figures.has(now)) {
    const notes = [now, next].map(figure => figure.querySelector('figcaption > .note'));
    if (notes.every(Boolean)) notes[0].textContent = notes[1].textContent;
    const [spec, later] = [now, next].map(figure => figure.querySelector('script'));
    if (spec.textContent === later.textContent) return;
    spec.textContent = later.textContent;
    figures.get(now).renew(JSON.parse(later.textContent));
  } else if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.data !== next.data) now.data = next.data;
  } else if (!now.isEqualNode(next)) {
    for (const { name: key, value } of next.attributes) {
      if (!KEPT.has(key) && now.getAttribute(key) !== value) now.setAttribute(key, value);
    }
    patchChildren(now, next);
  }
};

const patchChildren = (now, next) => {
  const old = new Map();
  for (const child of now.childNodes) old.set(name(child), [...(old.get(name(child)) ?? []), child]);
  let at = now.firstChild;
  for (const child of [...next.childNodes]) {
    const known = old.get(name(child))?.shift();
    if (!known) {
      now.insertBefore(child, at);
      bringToLife(child);
      continue;
    }
    if (known === at) at = at.nextSibling;
    else now.insertBefore(known, at);
    patch(known, child);
  }
  for (const child of [...old.values()].flat()) {
    figures.delete(child);
    child.remove();
  }
};

const bringToLife = node => {
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  if (node.nodeName === 'FIGURE') figures.set(node, enlive(node));
  else enliveAll(node);
  if (node.matches('section[id]')) watcher.observe(node);
  node.querySelectorAll('section[id]').forEach(section => watcher.observe(section));
};

const line = html('p', { class: 'live' });
document.body.prepend(line);
const say = (text, isLast) => {
  if (isLast) line.setAttribute('role', 'status'); // read out; every second would be too often
  if (line.textContent !== text) line.textContent = text;
};

const ask = async path => {
  const answer = await fetch(path, { cache: 'no-store' });
  if (!answer.ok) throw new Error(answer.status);
  return [await answer.text(), answer.headers.get('etag')?.replaceAll('"', '')];
};
const show = text => {
  const later = new DOMParser().parseFromString(text, 'text/html');
  document.title = later.title;
  patch(document.querySelector('.page'), later.querySelector('.page'));
};

let shown = '', failures = 0;
const follow = async () => {
  let state, page;
  try {
    state = JSON.parse((await ask('/state'))[0]);
    if (state.page !== shown) page = await ask('/');
    failures = 0;
  } catch {
    failures += 1;
  }
  if (failures >= TRIES) {
    line.classList.add('gone');
    say('No answer any more: the run was stopped, or its process has ended. Reload once it is resumed.', true);
    return;
  }
  if (!failures) say(state.text, state.over);
  if (page) {
    shown = page[1];
    show(page[0]);
  }
  if (failures || !state.over || state.page !== shown) setTimeout(follow, PAUSE);
};
follow();
