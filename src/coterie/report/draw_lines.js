// Curves with bands, levels and marks; and stacked bars.
const MARKED = 60; // a curve of more points than this has no dots
const isBroad = width => width >= 520; // levels have their names beside the figure, else inside
const tickCount = (axis, room) => clamp(room / (axis.whole ? 45 : 70), 2, 12);
const showSeries = spec => (spec.series.length > 1
  ? spec.series.map(line => ({ ...line, shape: spec.kind === 'bars' ? 'block' : 'line' })) : []);

kinds.lines = {
  legend: showSeries,
  height: (spec, width) => spec.height ?? clamp(width * 0.42, 240, 360),
  draw(c) {
    const { spec, group, width, height } = c;
    const series = spec.series.filter(line => !c.hidden.has(line.name));
    const levels = spec.levels ?? [], marks = spec.marks ?? [];
    const all = (lines, key) => lines.flatMap(line => line[key] ?? []);
    const shown = series.length ? series : spec.series;
    const ys = [...all(shown, 'y'), ...all(shown, 'low'), ...all(shown, 'high'), ...levels.map(l => l.value)];
    const top = 26, bottom = height - 44, count = clamp((bottom - top) / 45, 2, 7);
    const y = makeScale(spec.y, ys, bottom, top, count);
    const beside = isBroad(width) ? Math.max(0, ...levels.map(l => measure(l.text) + 12)) : 0;
    const left = labelWidth(y) + 10, right = width - Math.max(10, beside);
    const xs = [...new Set(all(spec.series, 'x'))].sort((a, b) => a - b);
    const x = makeScale(spec.x, xs, left, right, tickCount(spec.x, right - left), false);
    drawHeightAxis(group, spec.y, y, left, right);
    drawWidthAxis(group, spec.x, x, bottom);
    const taken = Array(isBroad(width) ? 3 : 1).fill(left - 1); // where names of marks end, line by line
    for (const { at, text } of marks) {
      const px = x(at);
      if (px < left || px > right) continue;
      group.append(svg('line', { x1: px, x2: px, y1: top, y2: bottom, stroke: colour('line'), 'stroke-dasharray': '2 3' }));
      const line = taken.findIndex(end => end < px), end = px + measure(text) + 10;
      if (line < 0 || end - 6 > right) continue;
      taken[line] = end;
      group.append(write(px + 4, top + 8 + 14 * line, text, RIM));
    }
    const places = spreadHeights(levels.map(l => y(l.value)), 14, top + (beside ? 0 : 16), bottom);
    for (const { value } of levels) {
      const line = { x1: left, x2: right, y1: y(value), y2: y(value), stroke: colour('soft'), 'stroke-dasharray': '5 4' };
      group.append(svg('line', line));
    }
    for (const line of series) drawCurve(group, line, x, y);
    levels.forEach(({ text }, i) => {
      if (beside) group.append(write(right + 8, places[i] + 4, text));
      else group.append(write(left + 4, places[i] - 4, text, RIM));
    });
    const lookUp = new Map(series.map(line => [line, new Map(line.x.map((at, i) => [at, i]))]));
    return {
      count: xs.length,
      find: px => nearest(xs, at => Math.abs(x(at) - px)),
      move: (index, across) => clamp(index + across, 0, xs.length - 1),
      show(index) {
        const at = xs[index], rule = { x1: x(at), x2: x(at), y1: top, y2: bottom, stroke: colour('line') };
        c.marks.append(svg('line', rule));
        const lines = [];
        for (const line of series) {
          const i = lookUp.get(line).get(at);
          if (i === undefined) continue;
          const dot = { cx: x(at), cy: y(line.y[i]), r: 4.5, fill: colour(line.colour), stroke: colour('card'), 'stroke-width': 2 };
          c.marks.append(svg('circle', dot));
          const band = line.low ? ` (${read(line.low[i])} to ${read(line.high[i])})` : '';
          lines.push([line.colour, line.name, read(line.y[i]) + band]);
        }
        return { x: x(at), y: top, title: `${spec.x.label} ${read(at)}`, lines };
      },
    };
  },
  list(spec) {
    const rows = [['series', spec.x.label, spec.y.label || 'value', 'low', 'high']];
    for (const line of spec.series) {
      line.x.forEach((at, i) => rows.push([line.name, at, line.y[i], line.low?.[i] ?? '', line.high?.[i] ?? '']));
    }
    for (const { value, text } of spec.levels ?? []) rows.push([text, '', value, '', '']);
    return rows;
  },
};

const nearest = (items, distance) => {
  let best = -1, least = Infinity;
  items.forEach((item, i) => {
    const d = distance(item, i);
    if (d < least) [best, least] = [i, d];
  });
  return best;
};

const drawCurve = (group, line, x, y) => {
  const at = line.x.map(x), ink = colour(line.colour), alone = at.length === 1;
  const path = (values, order = i => i) =>
    at.map((_, n) => `${at[order(n)].toFixed(1)},${y(values[order(n)]).toFixed(1)}`).join('L');
  if (line.low && alone) {
    const bar = { x1: at[0], x2: at[0], y1: y(line.low[0]), y2: y(line.high[0]), stroke: ink, 'stroke-width': 2 };
    group.append(svg('line', bar));
  } else if (line.low) {
    const back = path(line.high, n => at.length - 1 - n);
    group.append(svg('path', { d: `M${path(line.low)}L${back}Z`, fill: ink, 'fill-opacity': 0.14 }));
  }
  if (!alone && line.dash !== 'none') {
    const stroke = { stroke: ink, 'stroke-width': 2, 'stroke-dasharray': DASH[line.dash], 'stroke-linejoin': 'round' };
    group.append(svg('path', { d: `M${path(line.y)}`, fill: 'none', ...stroke }));
  }
  if (at.length > MARKED && line.dash !== 'none') return;
  at.forEach((px, i) => {
    const r = alone ? 5 : line.dash === 'none' ? 4.5 : 2.6;
    group.append(svg('circle', { cx: px, cy: y(line.y[i]), r, fill: line.dash === 'none' ? colour('card') : ink, stroke: ink, 'stroke-width': line.dash === 'none' ? 2 : 0 }));
  });
};

kinds.bars = {
  legend: showSeries,
  height: spec => spec.height ?? 260,
  draw(c) {
    const { spec, group, width, height } = c;
    const series = spec.series.filter(one => !c.hidden.has(one.name));
    const totals = spec.at.map((_, i) => series.reduce((sum, one) => sum + one.y[i], 0));
    const top = 26, bottom = height - 44;
    const y = makeScale({ ...spec.y, low: 0 }, [...totals, 1e-9], bottom, top, 5);
    const left = labelWidth(y) + 10, right = width - 10;
    const half = (spec.step ?? 1) / 2;
    const axis = { ...spec.x, low: spec.at[0] - half, high: spec.at[spec.at.length - 1] + half };
    const x = makeScale(axis, spec.at, left, right, tickCount(spec.x, right - left), false);
    drawHeightAxis(group, spec.y, y, left, right);
    const step = ((right - left) / (axis.high - axis.low)) * half * 2, gap = step > 6 ? Math.min(8, step * 0.2) : 0;
    spec.at.forEach((at, i) => {
      let base = 0;
      for (const one of series) {
        if (!one.y[i]) continue;
        const up = y(base + one.y[i]), low = y(base);
        group.append(svg('rect', { x: x(at) - step / 2 + gap / 2, y: up, width: step - gap, height: low - up, fill: colour(one.colour), 'shape-rendering': gap ? null : 'crispEdges' }));
        base += one.y[i];
      }
    });
    drawWidthAxis(group, spec.x, x, bottom);
    return {
      count: spec.at.length,
      find: px => nearest(spec.at, at => Math.abs(x(at) - px)),
      move: (index, across) => clamp(index + across, 0, spec.at.length - 1),
      show(index) {
        const px = x(spec.at[index]);
        const box = { x: px - step / 2, y: top, width: step, height: bottom - top, fill: colour('ink'), 'fill-opacity': 0.07 };
        c.marks.append(svg('rect', box));
        const lines = series.map(one => [one.colour, one.name, read(one.y[index])]);
        return { x: px, y: top, title: `${spec.x.label} ${read(spec.at[index])}`, lines };
      },
    };
  },
  list: spec => [
    [spec.x.label, ...spec.series.map(one => one.name)],
    ...spec.at.map((at, i) => [at, ...spec.series.map(one => one.y[i])]),
  ],
};
