// What all kinds of figures share: elements, numbers, scales and axes.
const kinds = {}; // every kind adds itself: { legend, height, draw, list }
const NAMESPACE = new DOMParser().parseFromString('<svg></svg>', 'text/html').body.firstChild.namespaceURI;
const DASH = { solid: null, dash: '7 4', dot: '2 4', dashdot: '8 3 2 3' };
const SIZE = 12; // of text in figures, in pixels

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    node.setAttribute(name, typeof value === 'number' ? +value.toFixed(2) : value);
  }
  node.append(...children);
  return node;
};
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(NAMESPACE, name), attributes, children);
const html = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);
const colour = name => `var(--${name})`;

const pen = document.createElement('canvas').getContext('2d');
const measure = (text, size = SIZE) => {
  pen.font = `${size}px system-ui, sans-serif`;
  return pen.measureText(text).width;
};
// Shortened in the middle: names often differ at their ends only.
const fit = (text, room) => {
  if (measure(text) <= room) return text;
  let short = '…';
  for (let kept = 1; kept < text.length; kept += 1) {
    const tail = Math.floor(kept / 2);
    const longer = `${text.slice(0, kept - tail)}…${tail ? text.slice(-tail) : ''}`;
    if (measure(longer) > room) break;
    short = longer;
  }
  return short;
};
const write = (x, y, text, more = {}) =>
  svg('text', { x, y, fill: colour('soft'), 'font-size': SIZE, ...more }, text);
// Text on top of lines: a rim in the colour of the ground keeps it readable.
const RIM = { stroke: colour('card'), 'stroke-width': 4, 'paint-order': 'stroke', 'stroke-linejoin': 'round' };

// A number as people read it: 1,437 or 0.9056.
const read = value => {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 10000) return Math.round(value).toLocaleString('en');
  if (size < 0.0001) return value.toExponential(2);
  return value.toLocaleString('en', { maximumSignificantDigits: 4 });
};
const readTick = (value, step) => {
  const size = Math.abs(value);
  if (size && (size >= 1e7 || size < 1e-5)) return value.toExponential(0);
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  const text = value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace('-', '−');
};
const percent = share => `${(100 * share).toLocaleString('en', { maximumFractionDigits: 1 })} %`;

const chooseStep = (span, count, whole) => {
  const raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(digit => digit * power).find(size => size >= raw * 0.999);
  return whole ? Math.max(1, Math.ceil(step)) : step;
};

// A scale from values to pixels between two ends; `loose` ends it at ticks, else at the values.
const makeScale = (axis, values, from, to, count, loose = true) => {
  const top = values.reduce((a, b) => Math.max(a, b), -Infinity); // too many for arguments
  let low = axis.low ?? values.reduce((a, b) => Math.min(a, b), Infinity), high = axis.high ?? top;
  if (low === high) {
    const room = whole => (whole ? 0.5 : Math.abs(low) * 0.1 || 0.5);
    [low, high] = [low - room(axis.whole), high + room(axis.whole)];
  }
  const step = chooseStep(high - low, count, axis.whole);
  if (loose) {
    low = axis.low ?? Math.floor(low / step + 1e-9) * step;
    high = axis.high ?? Math.ceil(high / step - 1e-9) * step;
    if (axis.most !== undefined && high > axis.most) high = Math.max(axis.most, top);
  }
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n += 1) {
    ticks.push(+(n * step).toPrecision(12));
  }
  const scale = value => from + ((value - low) / (high - low)) * (to - from);
  return Object.assign(scale, { low, high, step, ticks, from, to });
};

const labelWidth = scale => Math.max(...scale.ticks.map(tick => measure(readTick(tick, scale.step))));

// Horizontal lines with their values at the left, and the title of the axis above them.
const drawHeightAxis = (group, axis, scale, left, right) => {
  for (const tick of scale.ticks) {
    const y = scale(tick);
    group.append(svg('line', { x1: left, x2: right, y1: y, y2: y, stroke: colour('grid') }));
    group.append(write(left - 8, y + 4, readTick(tick, scale.step), { 'text-anchor': 'end' }));
  }
  if (axis.label) group.append(write(0, 11, axis.label));
};
const drawWidthAxis = (group, axis, scale, bottom, lines = false) => {
  let taken = -Infinity;
  group.append(svg('line', { x1: scale.from, x2: scale.to, y1: bottom, y2: bottom, stroke: colour('line') }));
  for (const tick of scale.ticks) {
    const text = readTick(tick, scale.step), half = measure(text) / 2, x = scale(tick);
    if (lines) group.append(svg('line', { x1: x, x2: x, y1: 0, y2: bottom, stroke: colour('grid') }));
    if (x - half < taken + 6) continue;
    taken = x + half;
    group.append(write(Math.min(x, scale.to + 10 - half), bottom + 18, text, { 'text-anchor': 'middle' }));
  }
  if (axis.label) {
    const middle = (scale.from + scale.to) / 2;
    group.append(write(middle, bottom + 36, axis.label, { 'text-anchor': 'middle' }));
  }
};

// Texts at heights, pushed apart where they would lie on each other.
const spreadHeights = (heights, gap, low, high) => {
  const order = heights.map((height, i) => [height, i]).sort((a, b) => a[0] - b[0]);
  const placed = [];
  order.forEach(([height], n) => { placed[n] = Math.max(height, n ? placed[n - 1] + gap : low); });
  for (let n = placed.length - 1, top = high; n >= 0; n -= 1) {
    placed[n] = Math.min(placed[n], top);
    top = placed[n] - gap;
  }
  const result = [];
  order.forEach(([, i], n) => { result[i] = placed[n]; });
  return result;
};
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
