// Draws the figures of a page. A figure has a switch for its views, a legend that hides and shows
// parts, a read-out for pointer and arrow keys, and two buttons: data as CSV, picture as SVG.
const PAPER = 680, PICTURE = 860; // widths of a figure that is printed, and of one that is saved
const SMALL = 320; // of a small one on paper

const enlive = figure => {
  let whole = JSON.parse(figure.querySelector('script').textContent);
  const title = figure.querySelector('h3').textContent, box = figure.querySelector('.chart');
  const state = { view: 0, hidden: new Set(), index: -1, width: 0 };
  let views = whole.views ?? [{}];
  const spec = () => ({ ...whole, ...views[state.view] });
  const kind = kinds[whole.kind];

  const legend = html('div', { class: 'legend', role: 'group', 'aria-label': 'Shown' });
  const plot = html('div', { class: 'plot' });
  const readout = html('div', { class: 'readout', 'aria-live': 'polite', hidden: '' });
  const named = () => (views[state.view].name ? `${title}, ${views[state.view].name}` : title);
  box.append(legend, plot);
  let tools = makeTools();
  figure.querySelector('figcaption').append(tools);

  function makeTools() {
    const bar = html('div', { class: 'tools' });
    if (views.length > 1) bar.append(views.length <= 4 ? makeSwitch() : makeChoice());
    const save = (text, tip, act) => {
      const button = html('button', { type: 'button', class: 'save', title: tip, 'aria-label': `${title}: ${tip}` }, text);
      button.addEventListener('click', act);
      return button;
    };
    bar.append(html('span', { class: 'saves' },
      save('CSV', 'save the data as CSV', () => saveData(kind.list(spec()), named())),
      save('SVG', 'save the picture as SVG', () => savePicture(drawPicture(), named()))));
    return bar;
  }
  function makeSwitch() {
    const group = html('span', { class: 'switch', role: 'group', 'aria-label': whole.choose });
    views.forEach((view, n) => {
      const button = html('button', { type: 'button', 'aria-pressed': String(n === state.view) }, view.name);
      button.addEventListener('click', () => {
        [...group.children].forEach((other, m) => other.setAttribute('aria-pressed', String(m === n)));
        choose(n);
      });
      group.append(button);
    });
    return group;
  }
  function makeChoice() {
    const list = html('select', { 'aria-label': whole.choose });
    views.forEach((view, n) => list.append(html('option', { value: n }, view.name)));
    list.value = state.view;
    list.addEventListener('change', () => choose(+list.value));
    return list;
  }
  function choose(n) {
    Object.assign(state, { view: n, index: -1 });
    state.hidden.clear();
    draw();
  }

  function render(width, parts) {
    const now = spec(), height = kind.height(now, width);
    const group = svg('g'), marks = svg('g', { 'pointer-events': 'none' });
    const root = svg('svg', { viewBox: `0 0 ${width} ${height.toFixed(0)}`, width, height: +height.toFixed(0), 'font-family': 'system-ui, sans-serif' }, group, marks);
    return { root, group, marks, width, height, probe: kind.draw({ spec: now, group, marks, width, height, hidden: state.hidden, ...parts }) };
  }
  function draw(width = Math.floor(plot.clientWidth)) {
    if (width < 80) return; // folded away; it is drawn when it is opened
    state.width = width;
    drawLegend();
    const { root, marks, probe } = render(width);
    fill(root, { role: 'img', tabindex: 0, 'aria-label': `${named()}. The arrow keys read its values.` }, []);
    const focused = plot.contains(document.activeElement);
    plot.replaceChildren(root, readout);
    if (focused) root.focus({ preventScroll: true });
    readout.hidden = true;
    const point = index => {
      marks.replaceChildren();
      state.index = index;
      readout.hidden = index < 0;
      if (index >= 0) showReadout(probe.show(index));
    };
    const follow = event => {
      const edge = root.getBoundingClientRect(), scale = width / edge.width;
      point(probe.find((event.clientX - edge.left) * scale, (event.clientY - edge.top) * scale));
    };
    root.addEventListener('pointermove', follow);
    root.addEventListener('pointerdown', follow);
    root.addEventListener('pointerleave', () => point(-1));
    root.addEventListener('blur', () => point(-1));
    root.addEventListener('keydown', event => {
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === 'Escape') point(-1);
      if (!way || !probe.count) return;
      event.preventDefault();
      point(state.index < 0 ? 0 : probe.move(state.index, ...way));
    });
  }
  function showReadout({ x, y, title: head, lines }) {
    readout.replaceChildren(html('strong', {}, head));
    for (const [ink, name, value] of lines) {
      const key = ink ? [html('i', { style: `background:${colour(ink)}` })] : [];
      readout.append(html('div', {}, html('span', {}, ...key, name), html('b', {}, value)));
    }
    const scale = plot.clientWidth / state.width, { offsetWidth: wide, offsetHeight: high } = readout;
    const right = x * scale + 14;
    const left = right + wide <= plot.clientWidth ? right : x * scale - wide - 14;
    readout.style.left = `${clamp(left, 0, Math.max(0, plot.clientWidth - wide))}px`;
    readout.style.top = `${clamp(y * scale, 0, Math.max(0, plot.clientHeight - high))}px`;
  }
  function drawLegend() {
    const focus = [...legend.children].indexOf(document.activeElement);
    legend.replaceChildren(...kind.legend(spec()).map(entry => {
      const button = html('button', { type: 'button', 'aria-pressed': String(!state.hidden.has(entry.name)) }, drawKey(entry), entry.name);
      button.addEventListener('click', () => {
        if (!state.hidden.delete(entry.name)) state.hidden.add(entry.name);
        draw();
      });
      return button;
    }));
    legend.children[focus]?.focus();
  }

  // The picture as a file: the legend is a part of it, and it has the colours of the light theme.
  function drawPicture() {
    const entries = kind.legend(spec()).filter(entry => !state.hidden.has(entry.name));
    const { root, group, marks, width, height } = render(PICTURE);
    let x = 0, y = 48;
    const keys = svg('g');
    for (const entry of entries) {
      const wide = measure(entry.name) + 48;
      if (x + wide > width) [x, y] = [0, y + 20];
      keys.append(svg('g', { transform: `translate(${x} ${y - 11})` }, drawKey(entry)), write(x + 30, y, entry.name));
      x += wide;
    }
    const top = entries.length ? y + 16 : 36, all = Math.ceil(height + top + 16);
    marks.remove();
    fill(group, { transform: `translate(0 ${top})` }, []);
    const head = write(0, 20, named(), { 'font-size': 16, 'font-weight': 600, fill: colour('ink') });
    const page = svg('g', { transform: 'translate(16 8)' }, head, keys, group);
    fill(root, { viewBox: `0 0 ${width + 32} ${all}`, width: width + 32, height: all }, []);
    root.replaceChildren(svg('title', {}, named()), svg('rect', { width: width + 32, height: all, fill: colour('card') }), page);
    return root;
  }

  new ResizeObserver(() => {
    if (!printing && Math.floor(plot.clientWidth) !== state.width) draw();
  }).observe(plot);
  draw();
  const paper = figure.closest('.small') ? SMALL : PAPER;

  // Shows a later state of the same figure; what the reader has chosen stays chosen.
  function renew(later) {
    const before = views.map(view => view.name), chosen = before[state.view];
    [whole, views] = [later, later.views ?? [{}]];
    const names = views.map(view => view.name), kept = names.indexOf(chosen);
    if (kept < 0) state.hidden.clear();
    Object.assign(state, { view: Math.max(0, kept), index: -1 });
    if (String(names) !== String(before)) {
      const old = tools;
      old.replaceWith(tools = makeTools());
    }
    draw();
  }
  return { print: onPaper => draw(onPaper ? paper : undefined), renew, kind: whole.kind };
};

const drawKey = ({ colour: ink, dash, shape }) => {
  const root = svg('svg', { width: 24, height: 14, viewBox: '0 0 24 14', 'aria-hidden': 'true' });
  if (shape === 'block') root.append(svg('rect', { x: 5, y: 1, width: 14, height: 12, rx: 2, fill: colour(ink) }));
  else if (shape && shape !== 'line') root.append(svg('path', { ...place(shape, 12, 7, 4), fill: colour(ink) }));
  else if (dash === 'none') root.append(svg('circle', { cx: 12, cy: 7, r: 4, fill: 'none', stroke: colour(ink), 'stroke-width': 2 }));
  else root.append(svg('line', { x1: 1, x2: 23, y1: 7, y2: 7, stroke: colour(ink), 'stroke-width': 2.5, 'stroke-dasharray': DASH[dash] }));
  return root;
};

const offer = (content, type, name) => {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = html('a', { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
};
const fileName = title => title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'figure';
const saveData = (rows, title) => {
  const cell = value => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  offer(`${rows.map(row => row.map(cell).join(',')).join('\r\n')}\r\n`, 'text/csv', `${fileName(title)}.csv`);
};
const savePicture = (root, title) => {
  const light = html('div', { class: 'light' });
  document.body.append(light);
  const css = getComputedStyle(light);
  const text = new XMLSerializer().serializeToString(root)
    .replace(/var\(--([\w-]+)\)/g, (_, name) => css.getPropertyValue(`--${name}`).trim());
  light.remove();
  offer(text, 'image/svg+xml', `${fileName(title)}.svg`);
};

let printing = false;
const figures = new Map(); // what draws each figure
const enliveAll = root => root.querySelectorAll('figure').forEach(figure => figures.set(figure, enlive(figure)));
enliveAll(document);
addEventListener('beforeprint', () => { printing = true; figures.forEach(drawn => drawn.print(true)); });
addEventListener('afterprint', () => { printing = false; figures.forEach(drawn => drawn.print(false)); });

// The entry of the section that is being read is marked in the table of contents.
const watcher = new IntersectionObserver(entries => {
  const links = new Map([...document.querySelectorAll('.contents a')].map(a => [decodeURIComponent(a.hash.slice(1)), a]));
  for (const { target, isIntersecting } of entries) {
    links.get(target.id)?.classList.toggle('here', isIntersecting);
  }
}, { rootMargin: '-20% 0px -70% 0px' });
document.querySelectorAll('section[id]').forEach(section => watcher.observe(section));
