// A heat map of counts, coloured by the share of each row; and horizontal bars.
// What is pointed at where rows lie below each other, and where the arrow keys lead from there.
const findRows = (count, top, high) => ({
  count,
  find: (px, py) => (py < top || py > top + count * high ? -1 : clamp(Math.floor((py - top) / high), 0, count - 1)),
  move: (index, dx, dy) => clamp(index + dx + dy, 0, count - 1),
});
const shorter = (names, room) => names.map(name => fit(name, room));

kinds.grid = {
  legend: () => [],
  height(spec, width) {
    const row = clamp(560 / spec.rows.length, spec.square ? 6 : 16, 30);
    return 30 + spec.rows.length * row + footHeight(spec, width);
  },
  draw(c) {
    const { spec, group, width, height } = c;
    const { rows, columns, counts, sizes } = spec;
    const sums = counts.map(row => row.reduce((sum, n) => sum + n, 0));
    const share = (r, k) => (sums[r] ? counts[r][k] / sums[r] : 0);
    const most = Math.max(1e-9, ...counts.flatMap((row, r) => row.map((_, k) => share(r, k))));
    const { left, right, names } = gridSides(spec, width);
    const top = 30, bottom = height - footHeight(spec, width);
    const high = (bottom - top) / rows.length, wide = columns.length ? (right - left) / columns.length : 0;
    const inset = wide > 8 ? 1 : 0;
    const widest = Math.max(0, ...counts.flat().map(n => measure(String(n), 11)));
    const written = wide >= widest + 3 && high >= 15; // all numbers or none
    group.append(write(0, 18, spec.row));
    const every = Math.ceil(15 / high);
    names.forEach((name, r) => {
      if (r % every) return;
      group.append(write(left - 8, top + (r + 0.5) * high + 4, name, { 'text-anchor': 'end' }));
    });
    if (columns.length) drawScale(group, most, right);
    counts.forEach((row, r) => row.forEach((n, k) => {
      const box = { x: left + k * wide, y: top + r * high, width: Math.max(0.5, wide - inset), height: high - 1 };
      group.append(svg('rect', { ...box, fill: colour('cell') }));
      const depth = share(r, k) / most;
      if (n) group.append(svg('rect', { ...box, fill: colour('heat'), 'fill-opacity': Math.max(0.06, depth) }));
      if (!n || !written) return;
      const ink = colour(depth > 0.55 ? 'on-heat' : 'ink');
      group.append(write(box.x + wide / 2, box.y + high / 2 + 4, n, { fill: ink, 'text-anchor': 'middle', 'font-size': 11 }));
    }));
    drawColumns(group, spec, left, wide, bottom, right);
    if (sizes) drawSizes(group, sizes, rows.length, right + 22, width - 18, top, high, bottom);
    const across = Math.max(1, columns.length);
    return {
      count: rows.length * across,
      find(px, py) {
        const r = Math.floor((py - top) / high), k = wide ? Math.floor((px - left) / wide) : 0;
        if (r < 0 || r >= rows.length || px < 0) return -1;
        return r * across + clamp(k, 0, across - 1);
      },
      move(index, dx, dy) {
        const r = clamp(Math.floor(index / across) + dy, 0, rows.length - 1);
        return r * across + clamp((index % across) + dx, 0, across - 1);
      },
      show(index) {
        const r = Math.floor(index / across), k = index % across, lines = [];
        const box = { x: left + k * wide, y: top + r * high, width: wide - inset, height: high - 1 };
        if (wide) c.marks.append(svg('rect', { ...box, fill: 'none', stroke: colour('ink'), 'stroke-width': 2 }));
        if (columns.length) {
          lines.push(['', `${spec.column} ${columns[k]}`, `${read(counts[r][k])} of ${read(sums[r])} (${percent(share(r, k))})`]);
        }
        for (const { name, values } of sizes?.columns ?? []) lines.push(['', name, read(values[r])]);
        return { x: left + (k + 1) * wide, y: top + r * high, title: `${spec.row} ${rows[r]}`, lines };
      },
    };
  },
  list(spec) {
    const more = spec.sizes?.columns ?? [];
    return [
      [spec.row, ...spec.columns.map(name => `${spec.column} ${name}`), ...more.map(one => one.name)],
      ...spec.rows.map((name, r) => [name, ...spec.counts[r], ...more.map(one => one.values[r])]),
    ];
  },
};

const gridSides = (spec, width) => {
  const names = shorter(spec.rows, width * 0.28);
  const left = Math.max(...names.map(name => measure(name)), measure(spec.row) - 8) + 12;
  const bars = spec.sizes ? (spec.columns.length ? 0.28 * (width - left) : width - left) : 0;
  const most = Math.max(240, spec.columns.length * (spec.square ? clamp(840 / spec.columns.length, 9, 46) : 90)); // wider cells would show nothing more
  const right = Math.min(width - 10 - bars, left + most);
  return { names, left, right: spec.columns.length ? right : left - 22 };
};
const isSlanted = (spec, wide) => Math.max(0, ...spec.columns.map(name => measure(name))) > wide - 4;
const footHeight = (spec, width) => {
  const { left, right } = gridSides(spec, width), longest = Math.max(0, ...spec.columns.map(name => measure(name)));
  if (!spec.columns.length || !isSlanted(spec, (right - left) / spec.columns.length)) return 46;
  return isNumbered(spec.columns) ? 46 : 36 + Math.min(longest, 110) * 0.72;
};
const isNumbered = names => names.every(name => /^\d+$/.test(name));

const drawColumns = (group, spec, left, wide, bottom, right) => {
  const { columns } = spec, numbers = isNumbered(columns);
  const slanted = isSlanted(spec, wide) && !numbers;
  const room = numbers ? Math.max(0, ...columns.map(name => measure(name))) + 8 : 15;
  const every = isSlanted(spec, wide) ? Math.ceil(room / wide) : 1;
  columns.forEach((name, k) => {
    if (k % every) return;
    const x = left + (k + 0.5) * wide, y = bottom + 16;
    if (!slanted) group.append(write(x, y, name, { 'text-anchor': 'middle' }));
    else group.append(write(x + 4, y - 4, fit(name, 110), { 'text-anchor': 'end', transform: `rotate(-45 ${x.toFixed(1)} ${y - 4})` }));
  });
  if (!columns.length) return;
  const below = slanted ? footHeight(spec, right + 10) : 46;
  group.append(write((left + right) / 2, bottom + Math.max(36, below - 8), spec.column, { 'text-anchor': 'middle' }));
};

// What the depth of a colour means, at the upper right.
const drawScale = (group, most, right) => {
  const words = [`0`, percent(most) + ' of the row'], start = right - measure(words[1]) - 86;
  if (start < 90) return;
  group.append(write(start - 6, 18, words[0], { 'text-anchor': 'end' }));
  [0.06, 0.25, 0.5, 0.75, 1].forEach((depth, n) => {
    group.append(svg('rect', { x: start + n * 16, y: 8, width: 15, height: 12, fill: colour('cell') }));
    group.append(svg('rect', { x: start + n * 16, y: 8, width: 15, height: 12, fill: colour('heat'), 'fill-opacity': depth }));
  });
  group.append(write(right, 18, words[1], { 'text-anchor': 'end' }));
};

const drawSizes = (group, sizes, count, left, right, top, high, bottom) => {
  const values = sizes.columns[0].values;
  const scale = makeScale({ low: 0 }, [...values, 1], left, right, clamp((right - left) / 60, 1, 6));
  for (let r = 0; r < count; r += 1) {
    const bar = { x: left, y: top + r * high + high * 0.14, height: Math.max(1, high * 0.72 - 1), fill: colour('blue') };
    group.append(svg('rect', { ...bar, width: Math.max(0, scale(values[r]) - left) }));
  }
  drawWidthAxis(group, { label: '' }, scale, bottom);
  const label = measure(sizes.label) <= right - left + 18 ? sizes.label : sizes.short;
  group.append(write(left, 18, label));
};

kinds.rows = {
  legend: () => [],
  height: spec => 44 + spec.labels.length * clamp(640 / spec.labels.length, 17, 26) + 44,
  draw(c) {
    const { spec, group, width, height } = c;
    const { labels, values, notes = [], levels = [] } = spec, names = shorter(labels, width * 0.32);
    const top = levels.length ? 44 : 26, bottom = height - 44, high = (bottom - top) / labels.length;
    const left = Math.max(...names.map(name => measure(name)), 20) + 10;
    const right = width - measure('0.0000') - 14;
    const known = values.filter(value => value !== null);
    const axis = { ...spec.x, low: Math.min(0, ...known) };
    const x = makeScale(axis, [...known, ...levels.map(l => l.value), axis.low + 1e-9], left, right, clamp((right - left) / 80, 2, 8));
    for (const tick of x.ticks) {
      group.append(svg('line', { x1: x(tick), x2: x(tick), y1: top, y2: bottom, stroke: colour('grid') }));
    }
    group.append(write(0, 14, spec.row));
    labels.forEach((_, r) => {
      const y = top + r * high, middle = y + high / 2 + 4;
      if (high >= 13 || r % 2 === 0) group.append(write(left - 8, middle, names[r], { 'text-anchor': 'end' }));
      if (values[r] === null) return group.append(write(left + 4, middle, '–'));
      const ends = [x(Math.max(0, axis.low)), x(values[r])].sort((a, b) => a - b);
      const bar = { x: ends[0], y: y + high * 0.18, width: Math.max(1, ends[1] - ends[0]), height: high * 0.64, rx: 2 };
      return group.append(svg('rect', { ...bar, fill: colour(spec.marked?.includes(r) ? 'orange' : 'blue') }));
    });
    levels.forEach(({ value, text }) => {
      const px = x(value), room = measure(text) / 2;
      group.append(svg('line', { x1: px, x2: px, y1: top - 6, y2: bottom, stroke: colour('soft'), 'stroke-dasharray': '5 4' }));
      group.append(write(clamp(px, left + room, width - room), top - 12, text, { 'text-anchor': 'middle' }));
    });
    values.forEach((value, r) => { // above the lines of levels
      const end = value === null ? 0 : Math.max(x(value), x(Math.max(0, axis.low)));
      if (end) group.append(write(end + 6, top + (r + 0.5) * high + 4, readTick(value, spec.step ?? 0.001), RIM));
    });
    drawWidthAxis(group, spec.x, x, bottom);
    return {
      ...findRows(labels.length, top, high),
      show(index) {
        const box = { x: 0, y: top + index * high, width, height: high, fill: colour('ink'), 'fill-opacity': 0.07 };
        c.marks.append(svg('rect', box));
        const lines = [['', spec.x.label, read(values[index])], ...(notes[index] ?? []).map(([name, value]) => ['', name, value])];
        return { x: x(Math.max(values[index] ?? 0, axis.low)), y: top + index * high, title: `${spec.row} ${labels[index]}`, lines };
      },
    };
  },
  list(spec) {
    const more = spec.notes?.[0]?.map(([name]) => name) ?? [];
    return [
      [spec.row, spec.x.label, ...more],
      ...spec.labels.map((name, r) => [name, spec.values[r] ?? '', ...(spec.notes?.[r] ?? []).map(([, value]) => value)]),
    ];
  },
};
